"""The record of a forward function, the transfer of its derivative, and what the precheck has to check at its nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from ..masks.cotangent import Cotangent, without_nan
from ..masks.mask import Mask, reduced, was_broadcast
from ..masks.numbers import any_nan
from .conditions import ALWAYS, NEVER, Condition
from .fills import is_fill
from .graph import forward_class, function_of

GENERATED = "GeneratedBackwardFor_"
"""The prefix of the name of each Function that `torch.library` makes, one for each overload of an operator."""

Masked = tuple[Sequence[Any], Sequence[Mask]]
"""Plain tensors, and their masks."""

Rule = Callable[..., Any]
Derivative = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Function:
    """The record of a forward function: what `ignoring` knows about it.

    For your own code, set only `selects`, `moves` and `safe_if`. The other fields are for PyTorch's own functions.

    Attributes:
        selects: whether a zero that the derivative writes means "not selected": the function's result would be the
            same for any value of that element. If this depends on the call, give a function that takes the node and
            returns a bool.
        compares: whether the function selects by comparing numbers. If so, an element that was compared with NaN counts
            as used, because a comparison with NaN selects nothing.
        moves: whether the derivative only moves elements or adds them. If so, the derivative is also applied to the
            mask.
        safe_if: a condition on the tensors that the function saved, for your own code by `save_for_backward`. If the
            condition holds, plain backward gives the right gradient.
        safe_if_saved: conditions for individual saved tensors, by name, in place of `safe_if`.
        scalars: the names of the arguments that are numbers and that the derivative multiplies by.
        only_if: one more condition for plain backward, on the node.
        derivative: our own derivative, used because PyTorch's formula mixes used elements with ignored elements.
        derivative_if: the nodes for which `derivative` is used. None means all nodes.
        fills: how to recognize a node with which the derivative fills in zeros that mean nothing, as for a norm of 0:
            the functions ahead of that node, as in "MaskedFill(Div(Norm))". See the module `fills`.
        fills_if: the nodes that do so, of those that `fills` describes. None means all of them.
    """

    selects: bool | Callable[[Any], bool] = False
    compares: bool = False
    moves: bool | Callable[[Any], bool] = False
    safe_if: Condition = NEVER
    safe_if_saved: Mapping[str, Condition] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    only_if: Callable[[Any], bool] | None = None
    derivative: Derivative | None = None
    derivative_if: Callable[[Any], bool] | None = None
    fills: tuple[str, ...] = ()
    fills_if: Callable[[Any], bool] | None = None

    def may_select(self, node: Any) -> bool:
        """Whether the function selects, as it was called at this node. Zeros that a formula fills in select nothing."""
        if self.selects is False or is_fill(node):
            return False
        return self.selects if isinstance(self.selects, bool) else self.selects(node)

    def __post_init__(self) -> None:
        for condition in (self.safe_if, *self.safe_if_saved.values()):
            if not isinstance(condition, Condition):
                raise TypeError(
                    f"{condition!r} is not a condition; use ignoring.ALWAYS, FINITE, MODERATE, AWAY_FROM_ZERO or NEVER"
                )


UNKNOWN = Function()
"""The record of a function that nobody has recorded."""

FUNCTIONS: dict[str | type, Function] = {}
"""The records. A key is the name of a function's nodes without "Backward0", or the class of a Function in Python."""

RULES: dict[Any, Rule] = {}
"""The rules. A key is an operator, such as `torch.ops.aten.mul`; the rule is for all its overloads."""

RULES_OF_SPARSE: dict[Any, Rule] = {}
"""The rules for a sparse cotangent. Its mask is the mask of the elements that it stores."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """How a mask goes through the derivative of a function, if plain PyTorch runs the derivative.

    Attributes:
        follow: the function that gives the masks. It is called as `follow(node, grad, mask, results)` with a cotangent,
            its mask, and the result of the derivative for each edge. It returns a mask for each edge, which may be
            expanded, or reduced by what was broadcast, to the shape of the result. It is not called if all elements
            count and the function selects nothing.
        reads: the attributes of the saved tensors that `follow` reads.
        only_if: a condition on the node. None means all nodes.
        is_repaired: the nodes that plain PyTorch runs also if their saved tensors are not safe. Other such derivatives
            are interpreted.
        repair: computes the results of such a node once more, if they have a NaN, as `repair(node, grad, results)` with
            a `Cotangent`. None if the result is right with 0 in place of each NaN that doesn't count, as in elementwise
            functions.
    """

    follow: Callable[[Any, torch.Tensor, Mask, Sequence[Any]], Sequence[Mask]]
    reads: tuple[str, ...] = ()
    only_if: Callable[[Any], bool] | None = None
    is_repaired: Callable[[Any], bool] | None = None
    repair: Callable[[Any, Cotangent, Sequence[Any]], Sequence[Any]] | None = None

    always_runs: ClassVar[bool] = False
    on_cotangents: ClassVar[bool] = False
    runs_one_derivative: ClassVar[bool] = False

    @cached_property
    def without_repair(self) -> Transfer:
        """The transfer for a node whose saved tensors are safe."""
        return self if self.is_repaired is None else replace(self, is_repaired=None)

    def after(
        self, owner: Any, node: Any, function: Function, arrived: Masked, results: Sequence[Any], wanted: Sequence[Any]
    ) -> Masked:
        """The results of a derivative that plain PyTorch has run, and their masks.

        Args:
            owner: the pass.
            node, function: the node, and the record of its function.
            arrived: the cotangents that arrived at the node, and their masks.
            results: the results for the edges of the node.
            wanted: the same results, with None for each edge whose mask is not needed.
        """
        (grad,), (mask,) = arrived
        if self.is_repaired is not None and mask is not None:
            if owner.count is not None:
                owner.count.see(node, [mask])
            if self.repair is None:
                for result in results:
                    if result is not None:
                        without_nan(result, mask)
            elif any_nan(results):
                results = self.repair(node, Cotangent(grad, mask), results)
        if mask is None and not function.may_select(node):
            return results, [None] * len(results)
        return results, list(map(_fitted, self.follow(node, grad, mask, wanted), wanted))

    def may_follow(self, node: Any, trusted: bool) -> bool:
        """True if plain PyTorch can run a node's derivative. `trusted`: the precheck found the node safe."""
        metadata = node._input_metadata[0]
        if metadata.is_nested_tensor or not metadata.dtype.is_floating_point:
            return False
        if not trusted and (self.is_repaired is None or not self.is_repaired(node)):
            return False
        for name in self.reads:
            if getattr(getattr(node, name, None), "unpack_hook", node) is not None:
                return False  # a hook would compute the tensor again, or fetch it; before 2.10 there may be one
        return self.only_if is None or self.only_if(node)


def _fitted(mask: Mask, result: Any) -> Mask:
    """The mask of a result, in its shape."""
    if mask is None or result is None:
        return None
    if mask.shape == result.shape:
        return mask
    return mask.expand(result.shape) if was_broadcast(mask.shape, result.shape) else reduced(mask, result.shape)


TRANSFERS: dict[str | type, Transfer] = {}
"""How a mask goes through the derivative of a function. The keys are as in `FUNCTIONS`."""


def record_of(node: Any) -> Function:
    """The record of the forward function whose derivative a node computes."""
    return FUNCTIONS.get(key_of(node), UNKNOWN)


def key_of(node: Any) -> str | type:
    """The key in `FUNCTIONS` for the forward function of a node."""
    forward = forward_class(node)
    if forward is None:
        return function_of(node.name())
    return name_in_torch(forward) if forward.__module__.startswith("torch.") else forward


def name_in_torch(forward: type) -> str:
    """The key in `FUNCTIONS` for a Function in Python that is PyTorch's own, or that `torch.library` made."""
    name = forward.__name__
    return name if name.startswith(GENERATED) else f"{forward.__module__}.{name}"


class Saved(NamedTuple):
    """One saved tensor, or several, of the nodes of a type: how to get it from a node, and its condition."""

    packed: Callable[[Any], Any]
    unpack_hook: Callable[[Any], Any]
    saved: Callable[[Any], Any]
    condition: Condition


class Checks(NamedTuple):
    """How to check the nodes of a type: their record, their saved tensors, and how to get their scalar arguments."""

    function: Function
    places: tuple[Saved, ...]
    scalars: tuple[Callable[[Any], Any], ...]


@functools.cache
def checks_of(node_type: type, function: Function) -> Checks | None:
    """How to check the nodes of a type; None if no condition is enough for their function."""
    usual = function.safe_if
    if usual is NEVER:
        return None
    saved = [
        attribute.removeprefix("_raw_saved_") for attribute in dir(node_type) if attribute.startswith("_raw_saved_")
    ]
    conditions = {attribute: function.safe_if_saved.get(attribute, usual) for attribute in saved}
    saved_in = "saved_{}" if issubclass(node_type, BackwardCFunction) else "_saved_{}"
    places = tuple(
        Saved(
            attrgetter(f"_raw_saved_{a}"),
            attrgetter(f"_raw_saved_{a}.unpack_hook"),
            attrgetter(saved_in.format(a)),
            condition,
        )
        for a, condition in conditions.items()
        if condition is not ALWAYS
    )
    scalars = [f"_saved_{scalar}" for scalar in function.scalars]
    return Checks(function, places, tuple(attrgetter(scalar) for scalar in scalars if hasattr(node_type, scalar)))
