"""The forward pass, watched: each public function of PyTorch that the user's code calls is looked at as it returns.

One sum says whether every result is finite. If one is not, the result's elements are told apart: those
that came with an operand, and those that were born here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from ..ignoring.graph import TELLS_OF_HOOKS
from ..ignoring.lifetimes import DEEP_GRAPHS
from .arithmetic import Born, again, first_born, is_nan, number, on_copies
from .places import Place
from .traces import Found, each_in, first_entries, first_stored, is_sparse, looked_at, tensors_in

if TYPE_CHECKING:
    from .recorder import Recorder

CALLED = "zero_or_nan.called"
"""Under this name a node's metadata have the function and the place of its forward call."""

CARRIES = "zero_or_nan.carries"
"""And under this one, by output, the elements that are not finite, with what they have it from."""

PASSES = "zero_or_nan.passes"
"""And what the call had from its operands."""

READABLE = "zero_or_nan.readable"
"""And, where PyTorch does not tell, whether what it saved is to be had without running a hook."""

Change = Callable[[Tensor], Tensor]

HOOKS: list[Any] = []
"""The hooks on saved tensors that are on just now, where PyTorch does not tell."""

_PUBLIC = {
    "__truediv__": "div", "__rtruediv__": "div", "__itruediv__": "div", "true_divide": "div", "divide": "div",
    "__rdiv__": "div", "__idiv__": "div", "__div__": "div",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul",
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__rsub__": "sub", "__isub__": "sub",
    "rsub": "sub", "subtract": "sub", "__pow__": "pow", "__rpow__": "pow", "__ipow__": "pow", "__matmul__": "matmul",
    "__rmatmul__": "matmul", "__mod__": "remainder", "__rmod__": "remainder", "__neg__": "neg", "__abs__": "abs",
    "__getitem__": "getitem", "__setitem__": "setitem", "__floordiv__": "floor_divide",
}  # fmt: skip

_ALIASES = frozenset(
    """
__float__ __int__ __complex__ __index__ __array__
__get__ __set__ __len__ __bool__ __iter__ __hash__ __repr__ __format__ __contains__ dim size numel stride is_contiguous
is_floating_point data_ptr storage untyped_storage element_size type item tolist numpy requires_grad_ register_hook
retain_grad detach detach_ view view_as transpose t permute unsqueeze squeeze expand expand_as narrow select chunk split
unbind flatten unflatten movedim swapaxes mT is_complex get_device register_post_accumulate_grad_hook is_nonzero size_
has_names is_same_size storage_offset nelement ndimension isfinite isnan isinf is_leaf allclose equal cpu_ share_memory_
is_shared is_pinned is_tensor is_storage is_grad_enabled set_grad_enabled backward grad
""".split()
)
"""Functions that make no numbers: what comes out shares memory with what went in, or is no tensor of floats."""

LEAVES = frozenset("relu zero fill copy setitem masked_fill masked_scatter index_copy index_fill".split())
"""Functions that, in place, make nothing of what they overwrite: afterwards it is there as it was, or it is gone."""

_WRITES_BUFFERS = {F.batch_norm: 1, F.instance_norm: 1, torch.batch_norm: 3, torch.instance_norm: 3}
"""Functions that write to two of their arguments, from this one on, if the one at 5 is true."""

UPDATES = frozenset("add sub mul div lerp addcmul addcdiv normal uniform random exponential bernoulli".split())
"""Functions that, in place, make no NaN of a finite number; what they overwrite is not looked at beforehand."""

MEANT = frozenset(
    """
softmax log_softmax logsumexp scaled_dot_product_attention multi_head_attention_forward cross_entropy gumbel_softmax
transformer_encoder_layer_forward _transformer_encoder_layer_fwd _native_multi_head_attention
""".split()
)
"""Functions for which an infinity is a way to leave an element out, wherever it came from."""


WEIGHS_ALL = frozenset("logsumexp cross_entropy nll_loss".split())
"""Those that are infinite only where all was left out, or what counts."""


class Plan(NamedTuple):
    """What is known of a function before it is called.

    Attributes:
        name: its public name.
        looks: whether its result has to be looked at.
        in_place: whether it changes its first argument.
    """

    name: str
    looks: bool
    in_place: bool


@functools.lru_cache(4096)
def plan_of(function: Any) -> Plan:
    """What is known of it by its name."""
    name = getattr(function, "__name__", type(function).__name__)
    changes = name in ("__setitem__",) or name.startswith("__i") and name.endswith("__") and name in _PUBLIC
    in_place = changes or (name.endswith("_") and not name.endswith("__"))
    public = _PUBLIC.get(name) or (name.rstrip("_") if in_place else name.removesuffix("_"))
    return Plan(public, name not in _ALIASES, in_place)


def buffers_of(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """What a call writes to as buffers: the statistics of a norm in training."""
    first = _WRITES_BUFFERS.get(function)
    if first is None:
        return []
    default = kwargs.get("training", kwargs.get("use_input_stats", function is F.instance_norm))
    if not (args[5] if len(args) > 5 else default):
        return []
    given = [*args[first : first + 2], kwargs.get("running_mean"), kwargs.get("running_var")]
    return [value for value in given if isinstance(value, Tensor)]


class Forward(TorchFunctionMode):
    """While entered, watches what is called in this thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def is_on(self) -> bool:
        """Whether the next call is seen here."""
        return self in _get_current_function_mode_stack()

    def is_innermost(self) -> bool:
        return self.is_on() and _get_current_function_mode_stack()[-1] is self

    def leave(self) -> None:
        """Go, from wherever it stands: blocks in generators end in any order, and in any thread."""
        above = []
        while self.is_on():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = plan_of(func)
        recorder = self.recorder
        if not plan.looks or recorder.thread < 0:
            if func is Tensor.register_hook or func is Tensor.retain_grad:
                args, kwargs = recorder.prepared(func, args, kwargs)
            return func(*args, **kwargs)
        before = None
        if plan.in_place:
            try:
                before = recorder.before(plan, args)
            except Exception as error:
                recorder.failed(plan.name, error)
        result = func(*args, **kwargs)
        try:
            recorder.after(func, plan, args, kwargs, result, before)
        except Exception as error:  # our own mistake must not become the user's
            recorder.failed(plan.name, error)
        return result


def metadata(node: Any) -> dict[str, Any]:
    """What is known of a node; it lives as long as the node."""
    known: dict[str, Any] = node.metadata
    return known


def note_call(node: Any, name: str, place: Place) -> None:
    """Have a node know where it comes from."""
    known = node.metadata
    if CALLED not in known:
        known[CALLED] = name, place
        DEEP_GRAPHS.saw(node)
        if not TELLS_OF_HOOKS:
            known[READABLE] = not HOOKS


class Call(NamedTuple):
    """A call whose result is not finite."""

    func: Any
    name: str
    place: Place
    args: Any = ()
    kwargs: Any = MappingProxyType({})

    def results(self, change: Change | None = None) -> list[Tensor | None]:
        """What it gives when it is run again on copies, changed first."""
        args = on_copies(self.args, change)
        with again():
            result = self.func(*args, **on_copies(self.kwargs, change))
        return [looked_at(tensor) for tensor in tensors_in(args[:1] if result is None else result)]

    def result(self, at: int, like: Tensor, change: Change | None = None) -> Tensor | None:
        """One of them; None where it can't be run again, or gives another shape."""
        try:
            alone = self.results(change)[at]
        except Exception:
            return None
        return alone if alone is not None and alone.shape == like.shape else None

    def first_born(self, entries: Tensor, change: Change | None = None) -> Born | None:
        """The first number in it that is not finite, when it is run again on copies, changed first."""
        args, kwargs = on_copies(self.args, change), on_copies(self.kwargs, change)
        return first_born(lambda: self.func(*args, **kwargs), entries)


def finite_ones(tensor: Tensor, keep: Collection[float] = ()) -> Tensor:
    """The tensor, with 1 where it is not finite, and is none of the numbers to keep."""
    stays = torch.isfinite(tensor)
    for infinity in keep:
        stays |= tensor == infinity
    return torch.where(stays, tensor, torch.ones_like(tensor))


def _all_different(tensor: Tensor, scale: float) -> Tensor:
    """The tensor, with another number between ¼ and ¾ of the scale for each element that is not finite."""
    numbers = scale * (torch.arange(tensor.numel(), dtype=torch.float32, device=tensor.device) * 0.618 % 0.5 + 0.25)
    return torch.where(torch.isfinite(tensor), tensor, numbers.reshape(tensor.shape).to(tensor.dtype))


_STAND_INS: tuple[Change, ...] = (
    finite_ones,
    *(functools.partial(_all_different, scale=scale) for scale in (1.0, 1000.0, -1000.0)),
)
"""What puts finite numbers in place of others. One number is not enough to know what a function does without them: it
may be a pole, as 1 is of `logit`, and equal numbers make a matrix singular, or leave a row no spread."""


def in_double(tensor: Tensor) -> Tensor:
    """The tensor in the widest dtype."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def left_by(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Of one of `LEAVES` that has run: what it overwrote, with a finite number wherever it has put another.

    It runs again on what is there now, and this time all that it puts there is finite.
    """
    target = on_copies(args[0])
    given, named = on_copies((args[1:], kwargs), torch.ones_like)
    with again():
        func(target, *map(_finite_number, given), **{name: _finite_number(value) for name, value in named.items()})
    return looked_at(target)


def _finite_number(value: Any) -> Any:
    return 1.0 if isinstance(value, float) and not math.isfinite(value) else value


def infinite_number(things: Any) -> float | None:
    """A number among the arguments, not in a tensor, that is not finite."""
    return next((number for number in each_in(things, float) if not math.isfinite(number)), None)


def describe(
    nature: Any, call: Call, whole: Tensor, entries: Tensor, operands: str, phase: Any = "forward", **more: Any
) -> Found:
    """What was found, in the words of a tensor and its elements."""
    where = first_stored(whole, entries) if is_sparse(whole) else None
    shape = entries.shape if where is None else whole.shape
    where = first_entries(entries) if where is None else where
    return Found(
        nature,
        phase,
        call.name,
        call.place,
        where,
        int(entries.sum()),
        tuple(shape),
        whole.dtype,
        whole.device,
        operands,
        **more,
    )


def come_in(tensor: Tensor, here: Tensor, call: Call) -> Found:
    """A tensor from elsewhere that is not finite."""
    bad = ~torch.isfinite(here)
    first = here[bad][0].item()
    infinite = first if isinstance(first, float) and bool((here[bad] == first).all()) else 0.0
    return describe("given", call, tensor, bad, number(first), infinite=infinite, tensor=weakref.ref(tensor))


def held_before(grad: Tensor, here: Tensor, call: Call) -> Found:
    """A `.grad` that is not finite before a pass adds to it."""
    bad = ~torch.isfinite(here)
    text = f"{number(here[bad][0].item())} in .grad before this pass"
    return describe("given", call, grad, bad, text, held=True)


def born_at(call: Call, result: Tensor, entries: Tensor, at: int, change: Change) -> Found:
    """What an operator made.

    Args:
        call: the call of it.
        result: one of its results.
        entries: those of the result that were born.
        at: which of the results.
        change: puts finite numbers in place of the others that stood beside those that it was made of.
    """
    born = call.first_born(entries, change)
    too_large = _only_too_large(call, entries, at, born, result)
    text = born.text if born is not None else ""
    return describe("made", call, result, entries, text, too_large=too_large)


def _only_too_large(call: Call, entries: Tensor, at: int, born: Born | None, result: Tensor) -> bool:
    """Whether the true value is a number that the dtype has no room for."""
    if born is not None and is_nan(born.result) and not born.of_large:
        return False
    try:
        wider = call.results(in_double)[at]
    except Exception:
        wider = None
    if wider is not None and wider.shape == entries.shape and wider.dtype != result.dtype:
        has_room = bool(torch.isfinite(wider)[entries].any())
        if has_room:
            return True
    return born is not None and not born.is_pole


def apart(call: Call, result: Tensor, bad: Tensor, inputs: Sequence[Tensor], at: int) -> Tensor:
    """Those of the elements that are not finite that an operator made, and did not get from an operand.

    Such an element is the same whatever finite numbers take the place of the operands' that are not finite.
    """
    if not inputs:
        return bad
    births = bad
    for change in _STAND_INS:
        alone = call.result(at, bad, change)
        if alone is None:
            return torch.zeros_like(bad)
        births = births & _same(alone, result)
        if not bool(births.any()):
            return births
    if infinite_number((call.args, call.kwargs)) is None:  # else it may have been put in place of an operand's
        for value in inputs:
            with contextlib.suppress(RuntimeError):  # of another shape
                births = births & torch.isfinite(value.broadcast_to(bad.shape))
    return births


def came_too(call: Call, births: Tensor, at: int) -> Tensor:
    """Those of the elements that an operator made which its operands make not finite as well.

    Such an element stays not finite if all finite numbers become small ones. A pole at one such number says nothing.
    """
    for small in (1.0, 0.5):
        alone = call.result(at, births, functools.partial(_small_ones, small=small))
        if alone is None:
            return torch.zeros_like(births)
        births = births & ~torch.isfinite(alone)
    return births


def _small_ones(tensor: Tensor, small: float) -> Tensor:
    return torch.where(torch.isfinite(tensor), small, tensor)


def of_masks(
    call: Call, result: Tensor, bad: Tensor, inputs: Sequence[Tensor], at: int, change: Change
) -> tuple[Tensor, bool]:
    """What the infinities of masks made of a result, had all others been finite.

    Args:
        call, result, inputs, at: as for `apart`.
        bad: the elements that are not finite, and that an operator did not make.
        change: leaves the infinities of masks, and puts finite numbers in place of the others.

    Returns:
        The elements that are undefined by the masks alone, and whether the masks did any harm: those included, or
        infinities that go on from here.
    """
    alone: Tensor | None = result
    if not all(torch.equal(change(value), value) for value in inputs):
        alone = call.result(at, bad, change)
    if alone is None:
        return torch.zeros_like(bad), True
    wrong = bad & ~torch.isfinite(alone)
    return (wrong if call.name in WEIGHS_ALL else wrong & alone.isnan()), bool(wrong.any())


def was_there(call: Call, result: Tensor, bad: Tensor, at: int) -> Tensor:
    """Those of the elements that no finite number could have become, when a function in place overwrote it."""
    largest = torch.finfo(result.dtype).max
    for value in (0.0, 1.0, -1.0, largest, -largest):
        target = on_copies(call.args[0], functools.partial(torch.full_like, fill_value=value))
        alone = call._replace(args=(target, *call.args[1:])).result(at, bad)
        if alone is None:
            return torch.zeros_like(bad)
        bad = bad & ~_same(alone, result)
    return bad


def _same(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())
