"""A derivative that the library has a second formula for, because PyTorch's mixes used elements with ignored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from .. import distributed
from ..cotangent import is_finite, mask_of, prefer_exact, unwrap
from ..distributed import Gathered, is_distributed
from ..failures import NotFollowed, RuleFailed
from ..graph import can_be_read_again, for_each_edge, function_of
from ..higher import in_forward_mode, left, remember, tangent_of
from ..jagged import is_jagged
from ..masks import Mask, was_broadcast
from ..registry import is_own
from .step import Results, Step

_ONCE = "its saved tensors can be had only once here"


class CustomVJP(Step):
    """The run of a derivative that ours may stand in for: PyTorch's runs as ever, and is mended when it is done."""

    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        derivative = self.function.derivative
        all_count = all(mask is None for mask in self.masks) and all(value is not None for value in arriving)
        if all_count and not self.selects:
            return results, [None] * len(results)
        name = function_of(self.node.name())
        try:
            if any(map(is_jagged, arriving)):
                raise NotFollowed("gets a nested tensor")
            if derivative is None or not can_be_read_again(self.node, unknown=True):
                raise NotFollowed(_ONCE)
            given = [
                self.all_ignored(number) if value is None else self.cotangent(value, self.masks[number])
                for number, value in enumerate(arriving)
            ]
            node = Gathered(self.node) if any(map(is_distributed, arriving)) else self.node
            careful = derivative(node, given)
            try:
                ours = for_each_edge(self.node, careful)
                for exact, result, (ahead, _) in zip(results, ours, self.node.next_functions, strict=True):
                    if ahead is not None and isinstance(exact, Tensor) and not isinstance(result, Tensor):
                        raise TypeError(f"it returned {result} in place of a Cotangent")
                ended = [_repaired(exact, result) for exact, result in zip(results, ours, strict=True)]
            except (TypeError, ValueError, RuntimeError) as error:
                raise error if is_own(derivative) else RuleFailed(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            is_hidden = isinstance(error, CheckpointError)  # of which older releases don't tell before
            self.failed(name, NotFollowed(_ONCE) if is_hidden else error)
            return results, [None] * len(results)
        return [value for value, _ in ended], [mask for _, mask in ended]


def _repaired(exact: Any, careful: Any) -> tuple[Any, Mask]:
    """Plain PyTorch's result where it is finite, elsewhere ours; what it gives as another number than 0 counts."""
    if not isinstance(exact, Tensor):
        return exact, None
    if isinstance(careful, Tensor) and careful.shape != exact.shape and was_broadcast(exact.shape, careful.shape):
        # PyTorch has summed over what was broadcast.
        careful = careful.sum_to_size(exact.shape)
    mask = mask_of(careful)
    value = (
        distributed.prefer_exact(exact, careful)
        if is_distributed(exact)
        else unwrap(prefer_exact(exact.detach(), careful))
    )
    if mask is not None:
        mask = mask | distributed.not_zero(value)
    if (exact.requires_grad or in_forward_mode()) and is_finite(exact) and is_finite(tangent_of(exact)):
        # So is the record of how PyTorch got it.
        remember(exact, mask)
        return exact, mask
    return left([careful], [value])[0], mask
