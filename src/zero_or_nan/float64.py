"""Float64 for code that is written in a smaller dtype, without a change in this code.

Each function of PyTorch gets its operands in float64, and all tensors that the code makes are in float64. Random
numbers are drawn in the dtype in which the code draws them, so they stay the same.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack  # type: ignore[attr-defined]
from torch.utils.weak import WeakTensorKeyDictionary

from .functions.numerics import numerics_of
from .masks.trees import tree_leaves, tree_map, tree_map_only
from .replacing import put_back, replace_engine

F = TypeVar("F", bound=Callable[..., Any])

_WIDER = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}

_CONVERSIONS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "cfloat": torch.complex64,
    "chalf": torch.complex32,
}
"""Methods that convert a tensor to a smaller dtype."""

_NO_NUMBERS = frozenset(
    "result_type can_cast promote_types set resize resize_as share_memory __delete__ ravel swapdims moveaxis adjoint "
    "hsplit vsplit dsplit cpu cuda".split()
)
"""Functions that compute nothing, apart from views, and from those that `numerics` has."""

_DRAWS = frozenset(
    "bernoulli binomial cauchy exponential geometric gumbel_softmax log_normal multinomial normal poisson rand "
    "rand_like randn randn_like uniform _sample_dirichlet _standard_gamma".split()
)
"""Functions that give random numbers, of which other dtypes have others."""


class in_float64:
    """Computes in float64 what the code inside computes in float32, float16 or bfloat16.

    A number that a smaller dtype rounds to 0, to an infinity or to its neighbour is then what it should be, and so are
    the gradients, without a change of the formula. Use it to see what a result is, or for the one function that needs
    more digits. Float64 takes twice the memory of float32, and is slow on most GPUs.

    - As a decorator, of a function or of a method such as `forward`: tensors that the function returns get the dtype
      back that they would have had. A number that this dtype has no room for is infinite again.
    - As a block: results stay in float64. Also put the backward pass in the block if a part of it runs Python, as that
      of a checkpoint does.

    Tensors that come from outside keep their dtype, and so do their gradients. Those that the code makes inside, also
    parameters, are in float64. What is not computed by functions of PyTorch that it can see, such as a NumPy array, or
    by a compiled model, keeps its dtype. Tensors on MPS can't be converted: PyTorch raises a TypeError.

    Raises:
        TypeError: if it decorates a generator or a coroutine, whose code runs after the call.

    >>> import torch
    >>> from zero_or_nan import in_float64
    >>> x = torch.tensor([100.0, 101.0], requires_grad=True)
    >>> x.exp().sum().log()
    tensor(inf, grad_fn=<LogBackward0>)
    >>> @in_float64()
    ... def log_sum_exp(x):
    ...     return x.exp().sum().log()
    >>> log_sum_exp(x)
    tensor(101.3133, grad_fn=<ToCopyBackward0>)
    >>> log_sum_exp(x).backward()
    >>> x.grad
    tensor([0.2689, 0.7311])
    """

    def __init__(self) -> None:
        self._modes: list[_Wider] = []

    def __enter__(self) -> None:
        self._modes.append(_Wider())
        self._modes[-1].__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._modes.pop().__exit__(*raised)

    def __call__(self, function: F) -> F:
        """The function, computed in float64."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"in_float64 can't decorate {function.__qualname__}, a generator or a coroutine, whose code runs after "
                "the call: use `with in_float64():` inside of it"
            )

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _Wider() as mode:
                result = function(*args, **kwargs)
            return tree_map_only(Tensor, mode.given_back, result)

        return wrapped  # type: ignore[return-value]


class _Wider(TorchFunctionMode):
    """A mode that converts what functions get. It knows which dtypes the results would have had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own: Any = WeakTensorKeyDictionary()
        self._thread = threading.get_ident()

    def __enter__(self) -> _Wider:
        super().__enter__()  # type: ignore[no-untyped-call]
        replace_engine(self, self._with_engine)
        return self

    def __exit__(self, *raised: Any) -> None:
        put_back(self)
        super().__exit__(*raised)

    def given_back(self, tensor: Tensor) -> Tensor:
        """A result in the dtype that it would have had."""
        return tensor.to(self._own[tensor]) if tensor in self._own else tensor

    def _with_engine(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """PyTorch's engine with this mode on: a backward pass may run Python, such as that of a checkpoint."""

        def engine(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or self in _get_current_function_mode_stack():
                return run(*args, **kwargs)
            super(_Wider, self).__enter__()  # type: ignore[no-untyped-call]
            try:
                return run(*args, **kwargs)
            finally:
                super(_Wider, self).__exit__(None, None, None)

        return engine

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _CONVERSIONS:
            func, name, args = Tensor.to, "to", (args[0], _CONVERSIONS[name])
        own = self._dtype_of((args, kwargs))
        if name.rstrip("_") in _DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            return self._drawn(func, name, args, kwargs)
        if _keeps(name) or name in ("to", "type") and not _has_dtype((args[1:], kwargs)):
            return self._noted(func(*args, **kwargs), own)
        if any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs))):
            return self._noted(_computed(func, args, kwargs), own)
        return self._made(func, args, kwargs)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives that has no operands, such as `zeros`."""
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or result.dtype not in _WIDER:
            return result
        wider = _WIDER[result.dtype]
        try:  # of a number in the code, float64 has more digits
            wide = func(*args, **{**kwargs, "dtype": wider})
        except TypeError:
            wide = _wider_result(result)
        return self._noted(wide, result.dtype)

    def _drawn(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Random numbers, as they are in the dtype in which the code draws them."""
        if not name.endswith("_"):
            result = func(*tree_map_only(Tensor, self.given_back, args), **kwargs)
            return self._noted(tree_map_only(Tensor, _wider_result, result), self._dtype_of(result))
        into = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        dtype = torch.get_default_dtype() if isinstance(into, torch.nn.Parameter) else into.dtype
        drawn = torch.empty(into.shape, dtype=self._own.get(into, dtype), device=into.device)
        args, kwargs = tree_map_only(Tensor, lambda each: drawn if each is into else each, (args, kwargs))
        into.detach().copy_(func(*args, **kwargs))
        return into

    def _dtype_of(self, tree: Any) -> torch.dtype:
        """The dtype that the result would have had."""
        leaves = tree_leaves(tree)
        named = [each for each in leaves if isinstance(each, torch.dtype)]
        numbers = [
            each for each in leaves if isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex())
        ]
        shaped = [each for each in numbers if each.dim()] or numbers
        dtypes = named[:1] or [self._own.get(each, each.dtype) for each in shaped] or [torch.get_default_dtype()]
        return functools.reduce(torch.promote_types, dtypes)

    def _noted(self, result: Any, own: torch.dtype) -> Any:
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.dtype in _WIDER.values():
                self._own[each] = own.to_complex() if each.is_complex() else own.to_real()
        return result


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function gives for operands in float64. If it writes into an operand, that keeps its dtype."""
    wide: dict[int, tuple[Tensor, Tensor]] = {}

    def put(thing: Any) -> Any:
        if isinstance(thing, torch.dtype):
            return _WIDER.get(thing, thing)
        if not isinstance(thing, Tensor) or thing.dtype not in _WIDER:
            return thing
        return wide.setdefault(id(thing), (thing, _wider(thing)))[1]

    result = func(*tree_map(put, args), **tree_map(put, kwargs))
    written = {id(copy): narrow.copy_(copy) for narrow, copy in wide.values() if copy._version}
    return tree_map_only(Tensor, lambda each: written.get(id(each), each), result) if written else result


def _wider(tensor: Tensor) -> Tensor:
    return tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))


def _wider_result(tensor: Tensor) -> Tensor:
    """A new tensor in float64; a leaf if the tensor is one."""
    return _wider(tensor.detach()).requires_grad_() if tensor.is_leaf and tensor.requires_grad else _wider(tensor)


def _has_dtype(tree: Any) -> bool:
    """Whether the arguments of `x.to` have a dtype, or a tensor with one."""
    return any(isinstance(each, (torch.dtype, Tensor)) for each in tree_leaves(tree))


@functools.cache
def _keeps(name: str) -> bool:
    """Whether a function computes nothing. What it gives may be a view, into which the code may write."""
    public = name if name.endswith("__") else name.rstrip("_")
    known, packet = numerics_of(public), getattr(torch.ops.aten, public, None)
    if known.makes == "nothing" and name != "type" or known.moves or public in _NO_NUMBERS or name.startswith("_amp"):
        return True
    is_operator = isinstance(packet, torch._ops.OpOverloadPacket)
    returned = getattr(packet, packet.overloads()[0])._schema.returns if is_operator else []
    return name != "to" and any(each.alias_info is not None and not each.alias_info.is_write for each in returned)
