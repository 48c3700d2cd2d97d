"""A cotangent that knows which of its elements count, and the functions that every rule needs.

`backward` multiplies a cotangent at every node of the graph. A `Cotangent` is that tensor with a mask. It exists while
one node's derivative runs: PyTorch's own formula gets it in place of a plain tensor. Each operator that the formula
calls arrives in `engine.dispatch`, which runs its rule, and the result is a `Cotangent` again. Between the nodes,
cotangents are plain tensors, and `engine.masked_pass.Pass` keeps their masks.

Benefit of a tensor subclass: PyTorch's hundreds of derivative formulas run unchanged, and only the few hundred
operators that they call need rules. Downside: a formula that reads the memory without an operator, by `.numpy()` or a
pointer, loses the mask. The pass then warns.

Three invariants hold for every `Cotangent`:

- an element that does not count is 0.0 or -0.0, never NaN or infinite;
- a cotangent without elements has a mask without elements, so a sum over it does not count;
- an element that is finite in plain PyTorch's backward has the very same bits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.masked import MaskedTensor
from torch.nn import Parameter

from .mask import Mask, all_count, everywhere
from .numbers import has_nan, is_number, is_sparse, is_wrapped, stored, unwrapped, values_of, with_values


class NotFollowed(Exception):
    """A rule raises this exception if it can't handle a case. Give the reason in a few words.

    A warning shows the reason to the user. From that operator on, the gradient is plain PyTorch's.
    """


Run = Any
"""The derivative call that a cotangent belongs to: a step of `engine.steps`, which these files can't import."""


class Cotangent(Tensor):
    """A cotangent with its mask. A rule gets a `Cotangent` in place of each tensor, and returns a `Cotangent`.

    Args:
        value: a plain tensor of any shape, on any device, with a floating or complex dtype. It must be 0 wherever the
            mask is False.
        mask: a bool tensor of the same shape, False at each element that the loss ignored. It may be an expanded
            tensor. None means that all elements count. Several cotangents may share a mask, so never write into it.

    Attributes:
        value: the cotangent as a plain tensor, which shares its memory with this `Cotangent`.
        mask: the mask, as given.
        step: the derivative call that this cotangent belongs to. `ignoring` sets it on the results of a rule.

    PyTorch's operators on a `Cotangent` use the rules:

    >>> cotangent = Cotangent(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    >>> product = cotangent * torch.tensor([3.0, float("nan")])
    >>> product.value, product.mask
    (tensor([3., 0.]), tensor([ True, False]))
    """

    value: Tensor
    mask: Mask
    """For a sparse cotangent, the mask of its stored elements."""
    step: Run | None
    viewed: tuple[Cotangent, Callable[[Tensor], Tensor]] | None
    """For a view: the base cotangent, and a function that takes the same view of a mask."""
    parts: Any = None
    """The `DTensor` that plain PyTorch has in place of this cotangent; None if plain PyTorch has a plain tensor."""

    handler: ClassVar[Callable[..., Any]]
    """The function that runs an operator on cotangents. `engine.dispatch` sets it, because it needs all rules."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, value: Tensor, mask: Mask = None, step: Run | None = None) -> Cotangent:
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        if dispatches(value):
            raise NotFollowed(f"a {type(value).__name__} can't carry a mask")
        if mask is None and not value.numel() and not is_sparse(value):
            mask = everywhere(False, value)  # so that a sum over nothing counts nothing
        self = Tensor._make_subclass(cls, value)
        self.value = value
        self.mask = mask
        self.step = step
        self.viewed = None
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls.handler(op, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """The numbers of the value. A result computed from them has no mask."""
        return self.value.numpy(force=force)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"Cotangent({self.value}, {self.mask})"


def dispatches(tensor: Tensor) -> bool:
    """True if the tensor's class has its own `__torch_dispatch__`."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def can_carry(tensor: Any) -> bool:
    """True if the tensor can have a mask: dense or jagged, floating or complex, in memory, and no other subclass."""
    if type(tensor) is not Tensor:
        tensor = values_of(tensor)
    return (
        (type(tensor) is Tensor or type(tensor) is Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and not tensor._is_zerotensor()
        and (tensor.is_floating_point() or tensor.is_complex())
        and not is_wrapped(tensor)
    )


def unwrap(thing: Any) -> Any:
    """Replace every `Cotangent` by its value.

    Args:
        thing: any object. In tuples, lists and dicts, every `Cotangent` inside is replaced.

    Returns:
        The same structure, with plain tensors.

    >>> unwrap([Cotangent(torch.ones(2), torch.tensor([True, True])), 3])
    [tensor([1., 1.]), 3]
    """
    kind = type(thing)
    if kind is Cotangent:
        return thing.value
    if kind is tuple or kind is list:
        return kind([unwrap(item) for item in thing])
    if kind is dict:
        return {key: unwrap(item) for key, item in thing.items()} if thing else thing
    if kind is Tensor or not isinstance(thing, Tensor):
        return thing
    values = values_of(thing)
    return with_values(thing, values.value) if type(values) is Cotangent else thing


def as_in_pytorch(thing: Any) -> Any:
    """The same structure, with the tensor that plain PyTorch has in place of each cotangent: a value or a `DTensor`."""
    kind = type(thing)
    if kind is Cotangent:
        return thing.value if thing.parts is None else thing.parts
    return kind(map(as_in_pytorch, thing)) if kind is tuple or kind is list else thing


def mask_of(thing: Any) -> Mask:
    """The mask of a `Cotangent`. For every other object the result is None: all of its elements count.

    >>> mask_of(Cotangent(torch.zeros(2), torch.tensor([True, False])))
    tensor([ True, False])
    >>> mask_of(torch.ones(2)) is None
    True
    """
    if type(thing) is not Cotangent:
        thing = values_of(thing)
    return thing.mask if type(thing) is Cotangent else None


def step_of(things: Iterable[Any]) -> Run | None:
    """The running derivative call that one of the things, also inside of lists and tuples, belongs to; else None."""
    for thing in things:
        kind = type(thing)
        if kind is not Tensor and kind is not Cotangent and isinstance(thing, Tensor):
            thing = values_of(thing)
        found = thing.step if type(thing) is Cotangent else step_of(thing) if kind is tuple or kind is list else None
        if found is not None and not found.is_over:
            return found
    return None


def selecting(*things: Any) -> bool:
    """True if a zero that is written beside these cotangents means "not selected".

    The zero itself does not show this. The record of the node's forward function does.
    """
    step = step_of(things)
    return step is not None and bool(step.selects)


def written_mask(thing: Any, beside: Any) -> Mask:
    """The mask of a value that a derivative writes beside a cotangent.

    A `Cotangent` has its own mask. In another value, the zeros are ignored if they mean "not selected".
    """
    if type(thing) is Cotangent:
        return thing.mask
    if not selecting(beside):
        return None
    return thing != 0 if isinstance(thing, Tensor) else torch.tensor(thing != 0, device=unwrap(beside).device)


def chosen(condition: Tensor, beside: Any, taken: bool = True) -> Tensor:
    """True where a derivative's condition equals `taken`, and where the condition compared a NaN.

    Every comparison with NaN is False. Such a comparison selects nothing, so the element was used.
    """
    step = step_of((beside,))
    unordered = None if step is None else step.where_unordered(condition)
    through = condition if taken else condition.logical_not()
    return through if unordered is None else through | unordered


def zero_ignored(value: Tensor, mask: Mask) -> Cotangent:
    """Make a `Cotangent` from `value` and `mask`, and set each ignored element that is NaN to 0.

    Use it in the rule of an operator that multiplies element by element.

    Args:
        value: plain PyTorch's result, computed from `unwrap(cotangent)`. The ignored elements of that tensor are
            0, so the ignored elements of `value` are 0 or NaN. `zero_ignored` changes `value` in place, so don't pass a
            tensor that is still needed elsewhere.
        mask: a bool tensor that is True at each element of `value` that counts. Its shape must expand to the shape of
            `value`. None means that all elements count.

    >>> cotangent = Cotangent(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    >>> zero_ignored(unwrap(cotangent) * torch.tensor([2.0, torch.inf]), mask_of(cotangent))
    Cotangent(tensor([2., 0.]), tensor([ True, False]))
    """
    if type(value) is Cotangent:
        raise TypeError("zero_ignored needs a plain tensor, computed from unwrap(cotangent), and got a Cotangent")
    if mask is not None:
        mask = mask if mask.shape == value.shape else mask.expand(value.shape)
        without_nan(value, mask)
    return Cotangent(value, mask)


def nothing(like: Any) -> Cotangent:
    """Zeros with the shape of a tensor, all of them ignored. They belong to the same derivative call as a cotangent."""
    value = torch.zeros_like(unwrap(like))
    return Cotangent(value, torch.zeros_like(value, dtype=torch.bool), step_of((like,)))


def without_nan(value: Tensor, mask: Tensor) -> None:
    """Write 0 over each NaN that does not count, in place."""
    if not value.is_cpu or has_nan(value):
        torch.where(mask, value, value.nan_to_num(0.0, torch.inf, -torch.inf), out=value)


def is_finite(thing: Any) -> bool:
    """True if all elements of a derivative's result are finite. False for a tensor that can't be read."""
    if isinstance(thing, (tuple, list)):
        return all(map(is_finite, thing))
    if hasattr(thing, "__tensor_flatten__"):  # a wrapper: its inner tensors are here, the whole may not be
        return all(is_finite(getattr(thing, part)) for part in thing.__tensor_flatten__()[0])
    thing = unwrap(values_of(thing))
    if not isinstance(thing, Tensor) or not (thing.is_floating_point() or thing.is_complex()):
        return True
    thing = unwrapped(thing)
    if can_carry(thing):
        return is_number(thing.sum()) or bool(thing.isfinite().all())
    if isinstance(thing, FakeTensor) or type(thing) is Tensor and thing._is_zerotensor():
        return True
    try:
        if thing.layout is torch.strided and not thing.is_nested and thing.untyped_storage().device.type == "meta":
            return True  # it has no numbers
        if thing.is_nested:
            return all(map(is_finite, thing.unbind()))
        if isinstance(thing, MaskedTensor):
            thing = thing.to_tensor(0)
        return bool((stored(thing) if is_sparse(thing) else thing).isfinite().all())
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def ignores(thing: Any) -> bool:
    """True if an element of these cotangents is ignored."""
    if isinstance(thing, (tuple, list)):
        return any(map(ignores, thing))
    return not all_count(mask_of(thing))


def prefer_exact(exact: Any, careful: Any) -> Any:
    """Take each finite element from `exact`, and all other elements and the mask from `careful`.

    Use it in the rule of an operator that you can also write in other operators that have rules. These other operators
    give `careful`, which has the right mask. The elements that are finite in plain PyTorch's result, `exact`, keep
    their bits.

    Args:
        exact: plain PyTorch's result, computed from `unwrap(cotangent)`: a tensor, or a tuple or list of tensors.
        careful: the same result, computed by the other operators: a `Cotangent` for each tensor of `exact`.

    Returns:
        A `Cotangent` for each tensor, with the dtype and memory layout of `exact`.

    >>> cotangent = Cotangent(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    >>> factor = torch.tensor([2.0, torch.nan])
    >>> prefer_exact(unwrap(cotangent) @ factor, cotangent @ factor)
    Cotangent(2.0, True)
    """
    if isinstance(exact, Tensor) and isinstance(careful, Tensor):
        if type(exact) is Cotangent or exact.shape != careful.shape:
            raise TypeError(
                "prefer_exact needs a plain tensor, computed from unwrap(cotangent), and a Cotangent of its shape, and "
                f"got {_described(exact)} and {_described(careful)}"
            )
        value = exact
        if not is_number(exact.sum()):
            value = torch.where(exact.isfinite(), exact, unwrap(careful).to(exact.dtype))
            if value.stride() != exact.stride():
                value = torch.empty_strided(exact.shape, exact.stride(), dtype=exact.dtype, device=exact.device).copy_(
                    value
                )
        return Cotangent(value, mask_of(careful))
    if isinstance(exact, (tuple, list)):
        return tuple(prefer_exact(e, c) for e, c in zip(exact, careful, strict=True))
    return exact


def _described(tensor: Tensor) -> str:
    return f"a {type(tensor).__name__} of shape {tuple(tensor.shape)}"


def wrap(result: Any) -> Any:
    """Plain results as cotangents. All of their elements count, as in plain PyTorch."""
    if isinstance(result, Tensor):
        if not can_carry(result):
            return result
        return with_values(result, Cotangent(values_of(result)))
    if isinstance(result, (tuple, list)):
        return type(result)(wrap(item) for item in result)
    return result
