"""A wider dtype for code that is written in a smaller one, without a change in this code.

Each function of PyTorch gets its operands in the wider dtype, and so are all tensors that the code makes. Random
numbers are drawn in the dtype in which the code draws them, so they stay the same.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .functions.numerics import numerics_of
from .ignoring.inside import never_traced, not_compiled, set_compiler
from .masks.trees import tree_leaves, tree_map
from .replacing import put_back, replace_engine

F = TypeVar("F", bound=Callable[..., Any])

_CONVERSIONS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "cfloat": torch.complex64,
    "chalf": torch.complex32,
    "cdouble": torch.complex128,
}
"""Methods that convert a tensor to a dtype."""

_VIEWS = frozenset(
    "__getitem__ chunk expand_as flatten ravel swapdims moveaxis adjoint hsplit vsplit dsplit unflatten view_as "
    "atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid".split()
)
"""Functions whose results may be views, apart from those that PyTorch's operators say."""

_NO_NUMBERS = frozenset(
    "result_type can_cast promote_types set resize resize_as share_memory __delete__ cpu cuda requires_grad "
    "embedding".split()
)
"""Functions that compute no new numbers, apart from views, and from those that `numerics` has."""

_WRITING = frozenset(
    "batch_norm instance_norm native_batch_norm _batch_norm_with_update _fused_adam_ _fused_sgd_".split()
)
"""Functions that write into operands without counting it as a write."""

_LATER = inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction

_here = threading.local()


def _on() -> dict[torch.dtype, _Wider]:
    """By dtype, the modes that are on in this thread."""
    modes: dict[torch.dtype, _Wider] = _here.__dict__.setdefault("modes", {})
    return modes


class _InDtype:
    """What `in_float64` and `in_float32` have in common."""

    dtype: ClassVar[torch.dtype]

    def __init__(self, *given: Any) -> None:
        if given:
            name = type(self).__name__
            raise TypeError(f"{name} takes no arguments: write @{name}() above the function")
        self._modes: list[_Wider] = []

    def __enter__(self) -> None:
        mode = _Wider(self.dtype)
        mode.__enter__()
        self._modes.append(mode)

    def __exit__(self, *raised: Any) -> None:
        self._modes.pop().__exit__(*raised)

    def __call__(self, function: F) -> F:
        """The function, computed in the wider dtype."""
        name, kind = type(self).__name__, type(function).__name__
        is_one = inspect.isroutine(function) or isinstance(function, functools.partial)
        if not is_one or isinstance(function, (classmethod, staticmethod)):
            raise TypeError(
                f"{name} decorates functions, and this is a {kind}. Decorate the method of a class or a module, and "
                f"write @{name}() below @classmethod, @staticmethod or @property"
            )
        if any(is_later(function) for is_later in _LATER):
            raise TypeError(
                f"{name} can't decorate {function!r}, a generator or a coroutine, whose code runs after the call. Put "
                f"the code between two `yield` or `await` into `with {name}():`"
            )

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.dtype in _on():
                return function(*args, **kwargs)  # it is on already
            with _Wider(self.dtype) as mode:
                result = function(*args, **kwargs)
            return _each(mode.given_back, result)

        return not_compiled(wrapped)  # type: ignore[return-value]


class in_float64(_InDtype):
    """Computes in float64 what the code inside computes in float32, float16 or bfloat16.

    A number that a smaller dtype rounds to 0, to an infinity or to its neighbour is then what it should be, and so are
    the gradients, without a change of the formula. Use it to see what a result is, or for the one function that needs
    more digits. Float64 takes twice the memory of float32, and is slow on most GPUs.

    - As a decorator, of a function or of a method such as `forward`: tensors that the function returns get the dtype
      back that they would have had. A number that this dtype has no room for is infinite again.
    - As a block: results stay in float64.

    The code reads the dtypes that it would have without this: `x.dtype` and what follows from it stay the same. Random
    numbers are drawn in these dtypes, so they stay the same, too. Tensors from outside keep their dtype, also if the
    code writes into them, and so do their gradients. Tensors that the code makes, also parameters, are in float64.
    Numbers in the code have all their digits: inside, `torch.tensor(0.1)` is not equal to a 0.1 from outside.
    `autocast` has no effect, and compiled code runs uncompiled.

    Keep these outside: the step of an optimizer, `GradScaler`, and loading a file. If Python code runs in the backward
    pass, as that of a checkpoint, of a hook, or of your own `autograd.Function`, put the pass inside, too. What PyTorch
    does not run as one of its functions, such as NumPy or a scripted module, keeps its dtype, or refuses float64.
    Tensors on MPS can't be converted: PyTorch raises a TypeError.

    Raises:
        TypeError: if it decorates a generator or a coroutine, whose code runs after the call, or no function.

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

    dtype = torch.float64


class in_float32(_InDtype):
    """Computes in float32 what the code inside computes in float16 or bfloat16, as `in_float64` does in float64.

    On a GPU, float32 is much faster than float64, and it has room for all that a 16-bit dtype loses by overflow.

    >>> import torch
    >>> from zero_or_nan import in_float32
    >>> x = torch.tensor([200.0, 300.0], dtype=torch.float16)
    >>> (x * x).mean().sqrt()
    tensor(inf, dtype=torch.float16)
    >>> with in_float32():
    ...     (x * x).mean().sqrt()
    tensor(254.9510)
    """

    dtype = torch.float32


class _Wider(TorchFunctionMode):
    """A mode that converts what functions get. It knows which dtypes the results would have had."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        smaller = [each for each in (torch.float16, torch.bfloat16, torch.float32) if each.itemsize < dtype.itemsize]
        self._dtype = dtype
        self._dtypes = {each: dtype for each in smaller} | {each.to_complex(): dtype.to_complex() for each in smaller}
        self._own: Any = WeakTensorKeyDictionary()
        self._shared: Any = WeakTensorKeyDictionary()
        self._memory: dict[int, torch.dtype] = {}  # of what is made, which a parameter takes over
        self._thread = threading.get_ident()
        self._is_off = False  # PyTorch takes a mode off while it handles a call
        self._saw_wide = False
        self._compiler: Any = self

    def __enter__(self) -> _Wider:
        try:
            _on().setdefault(self._dtype, self)
            replace_engine(self, self._with_engine)
            if "torch._dynamo" in sys.modules:
                self._compiler = set_compiler(None)  # compiled code would not be seen
            super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:  # Ctrl-C, too
            self._end()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        self._end()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _end(self) -> None:
        put_back(self)
        if _on().get(self._dtype) is self:
            del _on()[self._dtype]
        if self._compiler is not self:
            set_compiler(self._compiler)

    def given_back(self, tensor: Tensor) -> Tensor:
        """A result in the dtype that it would have had."""
        if tensor.is_leaf and tensor.requires_grad:
            return tensor  # it must stay the one that gets the gradient
        unknown = tensor.dtype if self._saw_wide else _like(torch.get_default_dtype(), tensor)
        is_wide = tensor.dtype in self._dtypes.values()
        return tensor.to(self._own.get(tensor, unknown)) if is_wide else tensor

    def _with_engine(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """PyTorch's engine with this mode on: a backward pass may run Python, such as that of a checkpoint."""

        def engine(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or not self._is_off:
                return run(*args, **kwargs)
            super(_Wider, self).__enter__()  # type: ignore[no-untyped-call]
            self._is_off = False
            try:
                return run(*args, **kwargs)
            finally:
                self._is_off = True
                super(_Wider, self).__exit__(None, None, None)  # type: ignore[no-untyped-call]

        return engine

    @never_traced
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._is_off = True
        try:
            return self._handled(func, args, kwargs or {})
        finally:
            self._is_off = False

    @never_traced
    def _handled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" or name == "__set__":
            return self._attribute(func, args, name == "__set__")
        if name in _CONVERSIONS:
            func, name, args = Tensor.to, "to", (args[0], _CONVERSIONS[name])
        own = self._dtype_of((args, kwargs))
        if name in ("to", "type_as") and len(args) > 1 and isinstance(args[1], Tensor):
            own = self._own_dtype(args[1])
        if _draws(name) or getattr(func, "__module__", "") == "torch.nn.init":
            return self._drawn(func, name, args, kwargs)
        if _is_view(name):
            args = _each(lambda each: self._wider(each) if _is_used(each) and each.is_leaf else each, args)
        if _keeps(name) or name in ("to", "type") and not _has_dtype((args[1:], kwargs)):
            return self._noted(func(*args, **kwargs), own)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if not tensors:
            return self._made(func, args, kwargs)
        device = tensors[0].device.type
        casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if casts else contextlib.nullcontext():
            result = self._computed(func, name, args, kwargs)
        if args and result is args[0] and not _writes(name):
            result = result.view_as(result)  # of `x.float()`, which may have another dtype than x
        return self._noted(result, own)

    def _attribute(self, func: Any, args: tuple[Any, ...], is_set: bool) -> Any:
        """An attribute of a tensor. What the code decides by a dtype stays the same."""
        tensor = args[0]
        if func == Tensor.dtype.__get__:  # type: ignore[attr-defined]
            return self._own_dtype(tensor)
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            self._shared.clear()  # what is written into it does not count as a write into the tensor
        if is_set and len(args) > 1 and isinstance(args[1], Tensor) and tensor.dtype in self._dtypes:
            self._shared.clear()
            return func(tensor, args[1].to(tensor.dtype))  # `p.grad = ...`, of a parameter that keeps its dtype
        return self._noted(func(*args), self._own_dtype(tensor) if isinstance(tensor, Tensor) else self._dtype)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives that has no operands, such as `zeros`."""
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or result.dtype not in self._dtypes:
            return result
        try:  # of a number in the code, the wider dtype has more digits
            wide = func(*args, **{**kwargs, "dtype": self._dtypes[result.dtype]})
        except TypeError:
            wide = self._result(result)
        self._memory[_memory_of(wide)] = result.dtype
        return self._noted(wide, result.dtype)

    def _drawn(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Random numbers, as they are in the dtype in which the code draws them."""
        if not name.endswith("_"):
            result = func(*_each(self.given_back, args), **kwargs)
            wide = _each(self._result, result)
            self._memory |= {_memory_of(each): self._dtype_of(result) for each in tree_leaves(wide)}
            return self._noted(wide, self._dtype_of(result))
        into = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        drawn = torch.empty(into.shape, dtype=self._own_dtype(into), device=into.device)
        args, kwargs = _each(lambda each: drawn if each is into else each, (args, kwargs))
        into.detach().copy_(func(*args, **kwargs))
        return into

    def _dtype_of(self, tree: Any) -> torch.dtype:
        """The dtype that the result would have had."""
        leaves = tree_leaves(tree)
        named = [each for each in leaves if isinstance(each, torch.dtype)]
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        numbers = [each for each in tensors if each.is_floating_point() or each.is_complex()]
        shaped = [each for each in numbers if each.dim()] or numbers
        dtypes = named[:1] or [*map(self._own_dtype, shaped)] or [torch.get_default_dtype()]
        return functools.reduce(torch.promote_types, dtypes)

    def _own_dtype(self, tensor: Tensor) -> torch.dtype:
        """The dtype that a tensor would have had."""
        if tensor.dtype not in self._dtypes.values() or tensor in self._own:
            return self._own.get(tensor, tensor.dtype)  # type: ignore[no-any-return]
        made = self._memory.get(_memory_of(tensor)) if isinstance(tensor, torch.nn.Parameter) else None
        self._saw_wide |= made is None
        return made or tensor.dtype

    def _noted(self, result: Any, own: torch.dtype) -> Any:
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.dtype in self._dtypes.values():
                self._own[each] = _like(own, each)
        return result

    def _computed(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives for operands in the wider dtype. An operand that it writes into keeps its dtype."""
        wide: dict[int, tuple[Tensor, Tensor, int]] = {}

        def put(thing: Any) -> Any:
            if isinstance(thing, torch.dtype):
                return self._dtypes.get(thing, thing)
            if not isinstance(thing, Tensor) or thing.dtype not in self._dtypes:
                return thing
            if id(thing) not in wide:
                copy = self._wider(thing)
                wide[id(thing)] = thing, copy, _version_of(copy)
            return wide[id(thing)][1]

        result = func(*_map(put, args), **_map(put, kwargs))
        if not wide:
            return _each(self._result, result)  # of integers, or of numbers in the code
        into = [id(each) for each in tree_leaves(args[:1])] if _writes(name) else []
        written: dict[int, Tensor] = {}
        for key, (narrow, copy, version) in wide.items():
            is_new = name in _WRITING and not copy.requires_grad and not torch.equal(copy, narrow.to(copy.dtype))
            if key in into or _version_of(copy) != version or is_new:
                is_leaf = narrow.requires_grad and narrow.is_leaf and key not in into  # as of `max_norm`
                (narrow.detach() if is_leaf else narrow).copy_(copy)
                written[id(copy)] = narrow
        return _each(lambda each: written.get(id(each), each), result) if written else result

    def _wider(self, tensor: Tensor) -> Tensor:
        """A tensor in the wider dtype. All uses of a tensor share one, so its gradient is rounded once, as a sum."""
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None or not _is_used(tensor):
            return tensor if dtype is None else tensor.to(dtype)
        version, wide = self._shared.get(tensor, (None, None))
        if version != tensor._version:
            wide = tensor.to(dtype)
            self._shared[tensor] = tensor._version, wide
        return wide  # type: ignore[no-any-return]

    def _result(self, tensor: Tensor) -> Tensor:
        """A new tensor in the wider dtype; a leaf if the tensor is one."""
        dtype = self._dtypes.get(tensor.dtype, tensor.dtype)
        if dtype is not tensor.dtype and tensor.is_leaf and tensor.requires_grad:
            return tensor.detach().to(dtype).requires_grad_()
        return tensor.to(dtype)


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with changed leaves. A size is one leaf."""
    return tree_map(change, tree, is_leaf=lambda each: isinstance(each, torch.Size))


def _each(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """A tree with changed tensors."""
    return _map(lambda each: change(each) if isinstance(each, Tensor) else each, tree)


def _like(dtype: torch.dtype, tensor: Tensor) -> torch.dtype:
    """The complex or the real dtype of the same precision, as a tensor is complex or real."""
    return dtype.to_complex() if tensor.is_complex() else dtype.to_real()


def _version_of(tensor: Tensor) -> int:
    """How often was written into a tensor; 0 in inference mode, which does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _memory_of(tensor: Any) -> int:
    """Where the numbers of a tensor are; 0 for a tensor without memory of its own, as inside of `vmap`."""
    with contextlib.suppress(RuntimeError, AttributeError):
        return tensor.data_ptr()  # type: ignore[no-any-return]
    return 0


def _is_used(tensor: Tensor) -> bool:
    """Whether the gradient of a tensor is recorded."""
    return tensor.requires_grad and torch.is_grad_enabled()


def _writes(name: str) -> bool:
    """Whether a function writes into its first operand."""
    is_operator = name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__", "__int__")
    return name == "__setitem__" or is_operator or name.endswith("_") and not name.endswith("__")


def _has_dtype(tree: Any) -> bool:
    """Whether the arguments of `x.to` have a dtype, or a tensor with one."""
    return any(isinstance(each, (torch.dtype, Tensor)) for each in tree_leaves(tree))


@functools.cache
def _keeps(name: str) -> bool:
    """Whether a function computes nothing."""
    public = name if name.endswith("__") else name.rstrip("_")
    if public in _NO_NUMBERS or name.startswith("_amp") or _is_view(name):
        return True
    return numerics_of(public).makes == "nothing" and public not in ("type", "allclose", "equal")


@functools.cache
def _draws(name: str) -> bool:
    """Whether a function gives random numbers, of which other dtypes have others."""
    return numerics_of(name.rstrip("_")).draws in ("data", "numbers")


@functools.cache
def _is_view(name: str) -> bool:
    """Whether a function only moves numbers. What it gives may be a view, into which the code may write."""
    public = name if name.endswith("__") else name.rstrip("_")
    packet = getattr(torch.ops.aten, public, None)
    overloads = packet.overloads() if packet is not None and hasattr(packet, "overloads") else []
    returned = getattr(packet, overloads[0])._schema.returns if overloads else []
    is_alias = any(each.alias_info is not None and not each.alias_info.is_write for each in returned)
    return public in _VIEWS or is_alias and public not in ("to", "detach")
