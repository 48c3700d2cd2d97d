"""A cotangent that knows which of its entries the loss ignored, and the dispatcher that hands it to the rules.

`backward` multiplies a cotangent at every node of the graph. A `Cotangent` is that tensor with a mask beside it. It goes
through PyTorch's own backward formulas unchanged; each operator that they call arrives in `__torch_dispatch__`, finds
its rule in `RULES`, and leaves as a `Cotangent` again. This file never changes when an operator is added.

Two invariants hold for every `Cotangent`:

- an ignored entry's value is 0.0 or -0.0, never NaN or infinite;
- an entry that is finite in plain PyTorch's backward has the very same bits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_AccumulateGrad: type = torch._C._functions.AccumulateGrad
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_current_pass: Callable[[], int] = torch._C._current_graph_task_id

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""What each operator does to a cotangent, by the operator's name ("aten::mul"), for all its overloads."""

LOST: set[str] = set()
"""Operators met without a rule in the pass that is running; `passes` turns them into one warning."""


CHUNK = 1 << 17
"""Entries that are mended at a time: half a megabyte of float32."""

RESHAPING = frozenset({"as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"})
"""Operators whose in-place form gives the same entries another shape."""


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for the named aten operators.

    A rule is called as `rule(op, *args, **kwargs)`, where `op` is the overload that arrived (the out-of-place one when
    an in-place one did), and returns what `op` would: a `Cotangent` for each cotangent.

    Raises:
        ValueError: when an operator has a rule already.
    """

    def register(function: Rule) -> Rule:
        for operator in operators:
            name = operator if "::" in operator else f"aten::{operator}"
            if name in RULES:
                raise ValueError(f"{name} has a rule already: {RULES[name].__name__}")
            RULES[name] = function
        return function

    return register


class Cotangent(Tensor):
    """A cotangent and its mask.

    Attributes:
        value: the cotangent as a plain tensor; shares its storage with this one.
        ignored: bool tensor of the same shape, True where the loss ignored the entry; None when it ignored none.

    During a backward pass operators on it follow the rules; outside of one it is an ordinary tensor, and what is
    computed from it is plain.
    """

    value: Tensor
    ignored: Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value: Tensor, ignored: Tensor | None = None) -> Cotangent:
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        self = Tensor._make_subclass(cls, value)
        self.value = value
        self.ignored = ignored
        return self

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Outside of a pass, and where a leaf takes its gradient, the mask has served its turn.
        if _current_pass() == -1 or type(_current_node()) is _AccumulateGrad:
            return op(*plain(args), **plain(kwargs))
        schema = op._schema
        if schema.is_mutable:
            return _in_place(op, schema.name, args, kwargs)
        return _follow(op, schema.name, args, kwargs)

    def numpy(self, *, force: bool = False) -> Any:
        return self.value.numpy(force=force)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.value.__deepcopy__(memo)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return repr(self.value)


def plain(thing: Any) -> Any:
    """The same structure with every cotangent replaced by its value."""
    kind = type(thing)
    if kind is Cotangent:
        return thing.value
    if kind is tuple or kind is list:
        return kind([plain(item) for item in thing])
    if kind is dict:
        return {key: plain(item) for key, item in thing.items()} if thing else thing
    return thing


def ignored_in(thing: Any, zeros: bool = False) -> Tensor | None:
    """The mask of a cotangent, None where there is none.

    With `zeros`, a plain tensor that backward assembles a cotangent from is one too: its zeros are written there to
    stand for "not selected".
    """
    if type(thing) is Cotangent:
        return thing.ignored
    if zeros and isinstance(thing, Tensor):
        return thing == 0
    return None


def full_mask(thing: Tensor, mask: Tensor | None) -> Tensor:
    """`mask`, or one that ignores nothing."""
    return torch.zeros(thing.shape, dtype=torch.bool, device=thing.device) if mask is None else mask


def settle(value: Tensor, ignored: Tensor | None) -> Cotangent:
    """The cotangent with `value`, in place, where ignored times NaN or inf is ignored.

    `value` must be fresh: computed from a cotangent whose ignored entries are zeros, so that an ignored entry is a zero
    or NaN.
    """
    if ignored is not None:
        if ignored.shape != value.shape:
            ignored = ignored.expand(value.shape)
        for part, mask in _in_cache(value, ignored):
            if part.device.type != "cpu" or has_nan(part):
                torch.where(mask, part.nan_to_num(0.0, torch.inf, -torch.inf), part, out=part)
    return Cotangent(value, ignored)


def _in_cache(value: Tensor, ignored: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Large tensors in parts that stay in the processor's cache while they are looked at and mended."""
    if value.numel() <= CHUNK or value.device.type != "cpu" or not (value.is_contiguous() and ignored.is_contiguous()):
        return ((value, ignored),)
    return zip(value.view(-1).split(CHUNK), ignored.view(-1).split(CHUNK), strict=True)


def has_nan(value: Tensor) -> bool:
    """Whether an entry may be NaN. One pass over the memory: `sum` is several times faster than `isnan().any()`."""
    total = value.sum().item()
    return total != total


def merge(exact: Any, careful: Any) -> Any:
    """`exact`, plain PyTorch's result, where it is finite; elsewhere `careful`, with careful's mask."""
    if isinstance(exact, Tensor) and isinstance(careful, Tensor):
        ignored = ignored_in(careful)
        finite = exact.isfinite()
        return Cotangent(torch.where(finite, exact, plain(careful).to(exact.dtype)), ignored)
    if isinstance(exact, (tuple, list)):
        return tuple(merge(e, c) for e, c in zip(exact, careful, strict=True))
    return exact


def _follow(op: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    follow = RULES.get(name)
    if follow is not None:
        try:
            return follow(op, *args, **kwargs)
        except Exception:
            result = op(*plain(args), **plain(kwargs))  # what plain PyTorch raises here, it raises
            LOST.add(name)
            return wrapped(result)
    result = op(*plain(args), **plain(kwargs))
    if _any_float(result):
        LOST.add(name)
    return wrapped(result)


def wrapped(result: Any) -> Any:
    """Plain results as cotangents that ignore nothing, as they are in plain PyTorch."""
    if isinstance(result, Tensor):
        floating = result.is_floating_point() or result.is_complex()
        return Cotangent(result) if floating and result.layout is torch.strided else result
    if isinstance(result, (tuple, list)):
        return type(result)(wrapped(item) for item in result)
    return result


def _any_float(result: Any) -> bool:
    if isinstance(result, Tensor):
        return result.is_floating_point() or result.is_complex()
    return isinstance(result, (tuple, list)) and any(_any_float(item) for item in result)


def _in_place(op: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """In-place operators follow the rule of their out-of-place twin; the result is written into value and mask."""
    target = args[0] if args else None
    if type(target) is not Cotangent:  # out= and foreach variants, or a plain tensor that takes a cotangent's values
        return op(*plain(args), **plain(kwargs))
    packet = name.removeprefix("aten::").removesuffix("_")
    twin = getattr(getattr(aten, packet, None), op._overloadname, None)
    if twin is None:
        op(*plain(args), **plain(kwargs))
        LOST.add(name)
        _write_mask(target, None)
        return target
    result = _follow(twin, f"aten::{packet}", args, kwargs)
    value = plain(result)
    if packet in RESHAPING:
        with torch._C._DisableTorchDispatch():
            op(*args, **kwargs)
        target.value, target.ignored = value, ignored_in(result)
        return target
    if 0 in target.value.stride() and target.value.numel() > 1:  # an expanded tensor has no place for each entry
        target.value = value.clone()
    else:
        target.value.copy_(value)
    _write_mask(target, ignored_in(result))
    return target


def _write_mask(target: Cotangent, ignored: Tensor | None) -> None:
    """Into the mask's own memory where it has one, so that a view's mask changes its base's."""
    if target.ignored is not None and 0 not in target.ignored.stride():
        target.ignored.copy_(ignored) if ignored is not None else target.ignored.zero_()
    else:
        target.ignored = ignored
