"""Derivatives that plain PyTorch runs. Afterwards, a step finds the masks of the results, and may repair the results.

Benefits: the derivative costs what it costs in PyTorch, and one hook after the node is enough. Downside: the step has
to know by itself what the derivative does to ignored elements. `CustomVJP` has a second formula in the library for it,
because PyTorch's formula mixes used and ignored elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from ....functions.authoring import RuleFailed
from ....functions.graph import can_be_read_again, for_each_edge, function_of, run
from ....functions.record import Function, Masked
from ....functions.registry import is_own
from ....masks.cotangent import NotFollowed, is_finite, mask_of, prefer_exact, unwrap
from ....masks.mask import Mask, all_count, full, reduced, was_broadcast
from ....masks.numbers import form_of, is_dense, not_zero, values_of, with_values
from ..higher import in_forward_mode, left, remember, tangent_of
from .step import Owner, Results, Step


class Transferred(Step):
    """The part of a run that follows the derivative. `end` gets the plain cotangents and the plain results."""

    on_cotangents = False
    runs_one_derivative = False

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    @classmethod
    def after(
        cls, owner: Owner, node: Any, function: Function, arrived: Masked, results: Sequence[Any], wanted: Sequence[Any]
    ) -> Masked:
        """The results and their masks, by a step that begins and ends now. The arguments are as in `Transfer.after`."""
        arriving, masks = arrived
        if owner.count is not None:
            owner.count.see(node, masks)
        return cls(owner, node, function, masks).end(results, arriving)


class Linear(Transferred):
    """The run of a derivative that only moves elements or adds them up. The derivative runs again on the mask."""

    runs_one_derivative = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        if any(isinstance(value, Tensor) and value.is_nested and is_dense(value) for value in results):
            self.owner.failed("a nested tensor", NotFollowed("a tensor that can't carry a mask"), suspected=True)
            return results, [None] * len(results)
        given = [  # each mask in the form of its cotangent, so that the derivative can run on it
            None if v is None else with_values(v, full(mask, values_of(v)))
            for v, mask in zip(arriving, self.masks, strict=True)
        ]
        return results, [
            None if value is None or mask is None else reduced(values_of(mask), values_of(value).shape)
            for value, mask in zip(results, for_each_edge(self.node, run(self.node, *given)), strict=True)
        ]


class OverNothing(Transferred):
    """The run of a derivative to which only cotangents without elements arrive. It gets plain tensors.

    If the derivative is a user's, it does not matter what it computes: a result without elements depends on no element.
    """

    always_runs = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, [None if value is None else not_zero(value) for value in results]


def is_over_nothing(arriving: Sequence[Any]) -> bool:
    """True if cotangents arrive at a node, and none of them has an element."""
    there = [values_of(value) for value in arriving if value is not None]
    return bool(there) and not any(value.is_nested or value.numel() for value in there)


_ONCE = "its saved tensors can be read only once here"


class CustomVJP(Transferred):
    """The run of a derivative with a second formula. PyTorch's runs as usual, and the second repairs its results."""

    always_runs = True
    runs_one_derivative = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        derivative = self.function.derivative
        is_ignoring = any(mask is not None for mask in self.masks) or any(value is None for value in arriving)
        if not is_ignoring and not self.selects:
            return results, [None] * len(results)
        name = function_of(self.node.name())
        try:
            if derivative is None or not can_be_read_again(self.node, unknown=True):
                raise NotFollowed(_ONCE)
            given = [
                self.all_ignored(number) if value is None else self.cotangent(value, self.masks[number])
                for number, value in enumerate(arriving)
            ]
            node = self.node
            for form in {form_of(value) for value in arriving}:
                node = form.reader(node)
            returned = derivative(node, given)
            try:
                by_edge = for_each_edge(self.node, returned)
                for exact, result, (ahead, _) in zip(results, by_edge, self.node.next_functions, strict=True):
                    if ahead is not None and isinstance(exact, Tensor) and not isinstance(result, Tensor):
                        raise TypeError(f"it returned {result} in place of a Cotangent")
                ended = [self._repaired(exact, result) for exact, result in zip(results, by_edge, strict=True)]
            except (TypeError, ValueError, RuntimeError) as error:
                raise error if is_own(derivative) else RuleFailed(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            is_hidden = isinstance(error, CheckpointError)  # older releases don't show this hook in advance
            self.failed(name, NotFollowed(_ONCE) if is_hidden else error)
            return results, [None] * len(results)
        return [value for value, _ in ended], [mask for _, mask in ended]

    def _repaired(self, exact: Any, masked: Any) -> tuple[Any, Mask]:
        """Plain PyTorch's result where it is finite, elsewhere the formula's; and its mask. What is not 0 counts."""
        if not isinstance(exact, Tensor):
            return exact, None
        if isinstance(masked, Tensor) and masked.shape != exact.shape and was_broadcast(exact.shape, masked.shape):
            # PyTorch has summed over what was broadcast.
            masked = masked.sum_to_size(exact.shape)
        mask = mask_of(masked)
        form = form_of(exact)
        value = form.prefer_exact(exact, masked) if form.is_shared else unwrap(prefer_exact(exact.detach(), masked))
        if mask is not None:
            mask = mask | not_zero(value)
        if not (exact.requires_grad or in_forward_mode()):
            return value, mask
        if self._keeps_record(exact, mask):
            remember(exact, mask)
            return exact, mask
        return left([masked], [value])[0], mask

    def _keeps_record(self, exact: Tensor, mask: Mask) -> bool:
        """Whether a recorded result keeps PyTorch's record, whose next derivative has PyTorch's bits.

        The formula's record knows which elements were ignored, and PyTorch's does not. So the formula's is needed if
        elements were mixed with NaN, or with ignored elements if a zero may become NaN ahead.
        """
        if not is_finite(exact.detach()):
            return False
        if in_forward_mode():
            return is_finite(tangent_of(exact))
        return all_count(mask) or self.owner.is_safe_ahead(self.node)
