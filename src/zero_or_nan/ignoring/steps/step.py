"""The run of one derivative of PyTorch's own, on cotangents that know their masks.

A step is begun with the plain cotangents that arrive and their masks, hands the derivative what it should get, and ends
with plain results and their masks. Other kinds of derivatives have steps of their own, in the files beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import distributed
from ..cotangent import Cotangent, can_carry, is_finite, mask_of, unwrap
from ..distributed import Gathering, is_distributed
from ..failures import NotFollowed
from ..graph import Edge, function_of
from ..higher import entered, is_recorded, left
from ..jagged import is_jagged, with_values
from ..masks import Mask, all_count, reduced, was_broadcast
from ..registry import GENERATED, Function
from .comparisons import Comparisons

Results = tuple[Sequence[Any], Sequence[Mask]]
"""What a derivative gave, as plain tensors, and the mask of each."""


class Owner(Protocol):
    """What a step asks of the pass that it belongs to.

    Attributes:
        entered: as in `cotangent.Run`.
    """

    entered: dict[int, tuple[Tensor, Cotangent]]

    def failed(self, name: str, error: Exception, suspected: bool = False) -> None:
        """Something could not be followed."""

    def is_safe_ahead(self, node: Any) -> bool:
        """Whether plain PyTorch's backward can be trusted from this node on."""

    def inner(self, roots: Sequence[Any], keep: Iterable[Edge]) -> Any:
        """A pass inside of this one, over a part of the graph that was computed again."""

    def recomputing(self, function: Any) -> Any:
        """The step that runs and computes this function again; None if there is none."""


class Step:
    """The run of a derivative of PyTorch's own, on cotangents that know their masks."""

    is_anothers = False
    """Whether the derivative is code that was not written for PyTorch itself: what it makes zeros for is not known."""

    is_over = False
    """Whether the run has ended. A graph of the gradient may have saved some of its cotangents."""

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        self.owner = owner
        self.node = node
        self.function = function
        self.masks = masks
        self._comparisons: Comparisons | None = None
        self._gathering: Gathering | None = None

    @property
    def entered(self) -> dict[int, tuple[Tensor, Cotangent]]:
        """Each tensor that entered a step of this pass, beside its cotangent."""
        return self.owner.entered

    @property
    def selects(self) -> bool:
        """Whether a zero that the derivative writes means "not selected"."""
        return self.function.may_select(self.node)

    @property
    def makes_up_zeros(self) -> bool:
        """Whether zeros like a cotangent are for what a derivative did not depend on: one that is differentiated."""
        return is_recorded(self.node)

    @property
    def is_needed(self) -> bool:
        """Whether anything can be ignored here though no masks arrive."""
        return self.selects

    @property
    def compares(self) -> bool:
        """Whether the derivative may compare what was saved."""
        return self.function.compares

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        if self.compares:
            self._watch_comparisons()
        cotangents = [
            value if value is None else self.cotangent(value, mask)
            for value, mask in zip(arriving, self.masks, strict=True)
        ]
        if any(map(is_distributed, arriving)):
            self._gathering = Gathering()
            self._gathering.start()
        return cotangents

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        if self._gathering is not None:
            self._gathering.stop()
        if self._comparisons is not None:
            self._comparisons.stop()
        values = left(results, [_given_back(result) for result in results])
        return values, [self._mask_of(result) for result in results]

    def _mask_of(self, result: Any) -> Mask:
        """That of a cotangent. Zeros that a derivative makes up without one are ignored with it.

        Such are the zeros of x**0, and of a product with a ZeroTensor, the tangent of a constant in forward mode.
        """
        if type(result) is not Tensor or not (can_carry(result) or result._is_zerotensor()):
            return mask_of(result)
        if bool(result.any()):
            if not is_finite(result) and not all(map(all_count, self.masks)):
                name = function_of(name_of(self.node))
                self.owner.failed(name, NotFollowed("a result of its derivative is no Cotangent"), True)
            return None
        masks = (mask for mask in self.masks if mask is not None and was_broadcast(result.shape, mask.shape))
        return next((reduced(mask, result.shape) for mask in masks), None)

    def over(self) -> None:
        """What the run refers to is let go."""
        self.is_over = True
        del self.owner, self.node, self.masks

    def cotangent(self, value: Any, mask: Mask) -> Any:
        """What the derivative gets in place of a plain tensor."""
        if is_jagged(value):
            return with_values(value, Cotangent(value._values, mask, self))
        if not is_distributed(value):
            return entered(value, mask, self)
        cotangent = Cotangent(distributed.whole(value), mask, self)
        cotangent.parts = value
        return cotangent

    def all_ignored(self, number: int) -> Cotangent:
        """What the derivative gets for an output that was not used: zeros, all ignored."""
        kind = self.node._input_metadata[number]
        zeros = torch.zeros(tuple(kind.shape), dtype=kind.dtype, device=kind.device)
        return Cotangent(zeros, torch.zeros_like(zeros, dtype=torch.bool), self)

    def _watch_comparisons(self) -> None:
        """Until the end."""
        first, *others = (ahead is not None for ahead, _ in self.node.next_functions)
        # `clamp` compares its input with its bounds: where these have no gradient, whether they are NaN is no matter.
        self._comparisons = Comparisons(first and not any(others))
        self._comparisons.start()

    def where_unordered(self, condition: Tensor) -> Mask:
        """Where a condition that the derivative made could not tell, for NaN compares with nothing."""
        return None if self._comparisons is None else self._comparisons.where_unordered(condition)

    def abandon(self) -> None:
        """The derivative failed, and will not end."""

    def failed(self, operator: str, error: Exception) -> None:
        """From this operator on the gradient is plain PyTorch's."""
        self.owner.failed(operator, error, suspected=True)


def _given_back(result: Any) -> Any:
    """What the engine gets of a result."""
    if type(result) is Cotangent and result.parts is not None:
        return distributed.prefer_exact(result.parts, result)
    return unwrap(result)


def is_custom(node: Any) -> bool:
    """Whether `torch.library` made the node, for an operator that is not PyTorch's own."""
    name: str = node.name()
    return name.startswith(GENERATED) and not name.startswith(f"{GENERATED}torch_")


def name_of(node: Any) -> str:
    """What a warning calls somebody's own derivative."""
    name: str = node.name().removesuffix("Backward")
    operator = name.removeprefix(GENERATED)
    if operator == name:
        return name
    # "mylib_op_default" is mylib::op.
    spaces = [space for space in torch.ops if operator.startswith(f"{space}_")]
    parts = [(space, operator.removeprefix(f"{space}_").rpartition("_")[0]) for space in spaces]
    return next((f"{space}::{op}" for space, op in parts if hasattr(getattr(torch.ops, space), op)), operator)
