"""The run of one of PyTorch's own derivatives, on cotangents that know their masks.

A step begins with the plain cotangents that arrive, and their masks. It hands the derivative its arguments, and ends
with plain results and their masks. Other derivatives have their own classes of steps, in the files beside this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....functions.fills import unordered_at
from ....functions.graph import function_of
from ....functions.record import GENERATED, Function, Masked
from ....masks.cotangent import Cotangent, NotFollowed, can_carry, is_finite, mask_of, unwrap
from ....masks.mask import Mask, all_count, reduced, was_broadcast
from ....masks.numbers import DENSE, form_of
from ....masks.watching import Comparisons, Watching
from ..higher import entered, is_recorded, left

Results = Masked
"""The results of a derivative, as plain tensors, and their masks."""


Owner = Any
"""The pass that a step belongs to: a `masked_pass.Pass`."""


class Step:
    """The run of one of PyTorch's own derivatives, on cotangents that know their masks."""

    on_cotangents = True
    """Whether the derivative gets cotangents in place of plain tensors."""

    always_runs = False
    """Whether the step has to run even if no masks arrive and the function selects nothing."""

    runs_one_derivative = True
    """Whether the step runs one derivative, PyTorch's own or a user's. If nothing arrives, `OverNothing` is enough."""

    is_anothers = False
    """Whether the derivative is code that was not written for PyTorch itself: what its zeros mean is not known."""

    is_over = False
    """Whether the run has ended. A graph of the gradient may have saved some of its cotangents."""

    comparing: type[Comparisons] = Comparisons
    """What watches the comparisons of the derivative."""

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        self.owner = owner
        self.node = node
        self.function = function
        self.masks = masks
        self._comparisons: Comparisons | None = None
        self._watching: Watching | None = None

    @property
    def entered(self) -> Any:
        """Each tensor that entered a step of this pass, with its cotangent."""
        return self.owner.entered

    @property
    def selects(self) -> bool:
        """Whether a zero that the derivative writes means "not selected"."""
        return self.function.may_select(self.node)

    @property
    def makes_up_zeros(self) -> bool:
        """Whether a recorded derivative is differentiated here: zeros mean that it does not depend on an input."""
        return is_recorded(self.node)

    @property
    def compares(self) -> bool:
        """Whether the derivative may compare saved tensors."""
        return self.function.compares

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        """Begin the step with the plain cotangents that arrive. Returns the arguments for the derivative."""
        if self.compares:
            first, *others = (ahead is not None for ahead, _ in self.node.next_functions)
            # `clamp` compares its input with its bounds. If the bounds have no gradient, a NaN in them does not matter.
            self._comparisons = self.comparing(first and not any(others))
            self._comparisons.start()
        cotangents = [
            value if value is None else self.cotangent(value, mask)
            for value, mask in zip(arriving, self.masks, strict=True)
        ]
        self._watching = next(filter(None, (form_of(value).watching() for value in arriving)), None)
        if self._watching is not None:
            self._watching.start()
        return cotangents

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        """End the step with the derivative's results."""
        if self._watching is not None:
            self._watching.stop()
        if self._comparisons is not None:
            self._comparisons.stop()
        values = left(results, [_given_back(result) for result in results])
        return values, [self._mask_of(result) for result in results]

    def _mask_of(self, result: Any) -> Mask:
        """The mask of a result. If a derivative returns plain zeros, they get the mask of the arriving cotangent.

        Plain zeros are, for example, the derivative of x**0, and a product with a ZeroTensor in forward mode.
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
        """Note that the run has ended, and free what it refers to."""
        self.is_over = True
        del self.owner, self.node, self.masks

    def cotangent(self, value: Any, mask: Mask) -> Any:
        """The cotangent that the derivative gets in place of a plain tensor."""
        form = form_of(value)
        return entered(value, mask, self) if form is DENSE else form.cotangent(value, mask, self)

    def all_ignored(self, number: int) -> Cotangent:
        """The cotangent of an output that was not used: zeros, all ignored."""
        metadata = self.node._input_metadata[number]
        zeros = torch.zeros(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
        return Cotangent(zeros, torch.zeros_like(zeros, dtype=torch.bool), self)

    def where_unordered(self, condition: Tensor) -> Mask:
        """The elements at which a condition of the derivative compared a NaN; None if there are none."""
        return unordered_at(self.node) if self._comparisons is None else self._comparisons.where_unordered(condition)

    def abandon(self) -> None:
        """Undo what `begin` did, because the derivative failed and `end` will not be called."""

    def failed(self, operator: str, error: Exception) -> None:
        """Record that an operator could not be followed. From there on the gradient is plain PyTorch's."""
        self.owner.failed(operator, error, suspected=True)


def _given_back(result: Any) -> Any:
    """The plain tensor, or DTensor, that the engine gets in place of a result."""
    if type(result) is Cotangent and result.parts is not None:
        return form_of(result.parts).prefer_exact(result.parts, result)
    return unwrap(result)


def is_custom(node: Any) -> bool:
    """True if `torch.library` made the node, for an operator that is not PyTorch's own."""
    name: str = node.name()
    return name.startswith(GENERATED) and not name.startswith(f"{GENERATED}torch_")


def name_of(node: Any) -> str:
    """The name of a user's derivative in a warning."""
    name: str = node.name().removesuffix("Backward")
    operator = name.removeprefix(GENERATED)
    if operator == name:
        return name
    # "mylib_op_default" is mylib::op.
    spaces = [space for space in torch.ops if operator.startswith(f"{space}_")]
    parts = [(space, operator.removeprefix(f"{space}_").rpartition("_")[0]) for space in spaces]
    return next((f"{space}::{op}" for space, op in parts if hasattr(getattr(torch.ops, space), op)), operator)
