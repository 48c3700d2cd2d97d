"""A cotangent that knows which of its entries the loss ignored, and the dispatcher that hands it to the rules.

`backward` multiplies a cotangent at every node of the graph. A `Cotangent` is that tensor with a mask beside it. It
goes through PyTorch's own backward formulas unchanged; each operator that they call arrives in `__torch_dispatch__`,
finds its rule in `RULES`, and leaves as a `Cotangent` again. This file never changes when an operator is added.

Two invariants hold for every `Cotangent`:

- an ignored entry's value is 0.0 or -0.0, never NaN or infinite;
- an entry that is finite in plain PyTorch's backward has the very same bits here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident, local
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from .graph import function_of

aten = torch.ops.aten
AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_current_pass: Callable[[], int] = torch._C._current_graph_task_id

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""What each operator does to a cotangent, by the operator's name ("aten::mul"), for all its overloads."""


Derivative = Callable[[Any, Sequence["Cotangent"]], Sequence[Any]]

DERIVATIVES: dict[str, Derivative] = {}
"""The derivatives of a few forward functions whose formula in PyTorch mixes what is used with what is ignored."""


class _Lost:
    """The operators met without a rule, for each pass by itself; `passes` turns them into one warning."""

    def __init__(self) -> None:
        self._running: dict[int, list[set[str]]] = {}

    def begin(self) -> None:
        self._running.setdefault(get_ident(), []).append(set())

    def end(self) -> set[str]:
        return self._running[get_ident()].pop()

    def add(self, name: str) -> None:
        """Note it for the innermost pass of this thread; on a device's own thread, for all that run."""
        here = self._running.get(get_ident())
        for passes in [here] if here else list(self._running.values()):
            if passes:
                passes[-1].add(name)


LOST = _Lost()

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

    >>> @rule("mylibrary::halve")
    ... def halved(op, grad):
    ...     return Cotangent(op(grad.value), grad.ignored)
    >>> RULES.pop("mylibrary::halve") is halved
    True
    """

    def register(function: Rule) -> Rule:
        for operator in operators:
            name = operator if "::" in operator else f"aten::{operator}"
            if name in RULES:
                raise ValueError(f"{name} has a rule already: {RULES[name].__name__}")
            RULES[name] = function
        return function

    return register


def derivative(*functions: str) -> Callable[[Derivative], Derivative]:
    """Register a derivative for the nodes of the named forward functions.

    It is called as `derivative(node, cotangents)` when plain PyTorch's own gives a result that is not finite, and takes
    its place there. Written in operators that have rules, it returns a `Cotangent` for each input of the function.
    """

    def register(function: Derivative) -> Derivative:
        DERIVATIVES.update(dict.fromkeys(functions, function))
        return function

    return register


class Cotangent(Tensor):
    """A cotangent and its mask.

    Attributes:
        value: the cotangent as a plain tensor; shares its storage with this one.
        ignored: bool tensor of the same shape, True where the loss ignored the entry; None when it ignored none.

    During a backward pass operators on it follow the rules; outside of one it is an ordinary tensor, and what is
    computed from it is plain.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * torch.tensor([3.0, float("nan")])
    >>> ignored = torch.tensor([False, True])
    >>> y.backward(Cotangent(torch.tensor([1.0, 0.0]), ignored))
    >>> x.grad
    tensor([3., 0.])
    """

    value: Tensor
    ignored: Tensor | None
    viewed: tuple[Cotangent, Callable[[Tensor], Tensor]] | None
    """For a view: what it is a view of, and how to view a mask alike."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, value: Tensor, ignored: Tensor | None = None) -> Cotangent:
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        self = Tensor._make_subclass(cls, value)
        self.value = value
        self.ignored = ignored
        self.viewed = None
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Outside of a pass, and where a leaf takes its gradient, the mask has served its turn.
        if _current_pass() == -1 or type(_current_node()) is AccumulateGrad:
            return op(*plain(args), **plain(kwargs))
        schema = op._schema
        if schema.is_mutable:
            return _in_place(op, schema.name, args, kwargs)
        result = _follow(op, schema.name, args, kwargs)
        if op.is_view:
            _remember_view(result, op, args, kwargs)
        return result

    def numpy(self, *, force: bool = False) -> Any:
        return self.value.numpy(force=force)

    def tolist(self) -> Any:
        return self.value.tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.value.__deepcopy__(memo)  # type: ignore[no-untyped-call]

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
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
    return zip(torch.split(value.view(-1), CHUNK), torch.split(ignored.view(-1), CHUNK), strict=True)


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
    composite = op.decompose(*args, **kwargs)  # called by a rule, an operator that is made of others arrives whole
    if composite is not NotImplemented:
        return composite
    result = op(*plain(args), **plain(kwargs))
    if _any_float(result) and (_ignores((*args, *kwargs.values())) or not _is_finite(result)):
        LOST.add(name)
    return wrapped(result)


def _ignores(thing: Any) -> bool:
    if isinstance(thing, (tuple, list)):
        return any(map(_ignores, thing))
    return type(thing) is Cotangent and thing.ignored is not None and bool(thing.ignored.any())


def _is_finite(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return all(map(_is_finite, result))
    return not isinstance(result, Tensor) or result.layout is not torch.strided or bool(result.isfinite().all())


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


def entering(node: Any) -> Callable[[Sequence[Any]], tuple[Any, ...] | None]:
    """A hook that is told as the node's derivative begins, after the hooks of its tensors.

    A plain tensor that one of those made of a cotangent is a cotangent again, so that what lies ahead can be ignored
    in it.
    """
    number = node._sequence_nr()
    stepwise = DERIVATIVES.get(function_of(node.name()))

    def enter(cotangents: Sequence[Any]) -> tuple[Any, ...] | None:
        _in.node = number
        if stepwise is not None:
            _watch(node, stepwise)
        for cotangent in cotangents:
            if type(cotangent) is Tensor:
                return tuple(wrapped(c) if type(c) is Tensor else c for c in cotangents)
        return None

    return enter


def outside() -> None:
    """No derivative is running yet."""
    _in.node = None


def _watch(node: Any, stepwise: Derivative) -> None:
    """Once, when the node's derivative is done: keep of it what plain PyTorch gives, and mend the rest step by step."""

    def after(results: Sequence[Any], given: Sequence[Any]) -> Any:
        handle.remove()
        kinds = {type(cotangent) for cotangent in given}
        if Cotangent not in kinds:
            return None
        try:
            # PyTorch's formula may take another way for a subclass, and rules can make numbers of NaN on it.
            exact = node(*plain(given))
            exact = exact if isinstance(exact, tuple) else (exact,)
            if type(None) not in kinds and not _ignores(given):
                return wrapped(exact)
            if _is_finite(exact):
                return tuple(map(_mended, exact, results))
            return tuple(map(_mended, exact, stepwise(node, [_made_up(node, i, c) for i, c in enumerate(given)])))
        except Exception:
            LOST.add(function_of(node.name()))
            return None

    handle = node.register_hook(after)


def _mended(exact: Any, careful: Any) -> Any:
    if exact is None:
        return None
    result = merge(exact, careful)
    if result.ignored is not None:
        result.ignored = result.ignored & (result.value == 0)
    return result


def _made_up(node: Any, number: int, cotangent: Any) -> Any:
    """All ignored, for an output that was not used."""
    if cotangent is not None:
        return cotangent
    kind = node._input_metadata[number]
    zeros = torch.zeros(tuple(kind.shape), dtype=kind.dtype, device=kind.device)
    return Cotangent(zeros, torch.ones_like(zeros, dtype=torch.bool))


def retained() -> bool:
    """Whether the operator was called to retain a gradient in `.grad`: not by a derivative, nor by a hook in Python."""
    node = _current_node()
    if node is None or node._sequence_nr() == _in.__dict__.get("node", node._sequence_nr()):
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__package__")).startswith(__package__):
        frame = frame.f_back
    return frame is None or frame.f_code is _engine_run_backward.__code__


_in = local()


def _remember_view(result: Any, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    parent = args[0]
    if type(result) is Cotangent:
        result.viewed = (parent, lambda mask: op(mask, *args[1:], **kwargs))
    elif isinstance(result, (tuple, list)):
        for number, part in enumerate(result):
            if type(part) is Cotangent:
                part.viewed = (parent, lambda mask, number=number: op(mask, *args[1:], **kwargs)[number])


def _write_mask(target: Cotangent, ignored: Tensor | None) -> None:
    """A new mask for a cotangent that was written to, and for what it is a view of.

    Cotangents share their masks freely, so no mask is ever written into.
    """
    target.ignored = ignored
    if target.viewed is None:
        return
    parent, view = target.viewed
    try:
        mask = laid_out(full_mask(parent.value, parent.ignored), parent.value)
        view(mask).copy_(full_mask(target.value, ignored))
    except (RuntimeError, NotImplementedError):  # a view as another dtype: a mask can't follow, so all entries count
        mask = None
    _write_mask(parent, mask)


def laid_out(mask: Tensor, value: Tensor) -> Tensor:
    """A copy of the mask that lies in memory as the value does, so that every view of one is a view of the other."""
    steps = zip(value.size(), value.stride(), strict=True)
    extent = value.storage_offset() + 1 + sum((size - 1) * step for size, step in steps) if value.numel() else 0
    memory = torch.zeros(extent, dtype=torch.bool, device=value.device)
    return memory.as_strided(value.size(), value.stride(), value.storage_offset()).copy_(mask)
