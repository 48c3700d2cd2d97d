"""A derivative with a second formula in the library, because PyTorch's formula mixes used and ignored elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from ..cotangent import is_finite, mask_of, prefer_exact, unwrap
from ..failures import NotFollowed, RuleFailed
from ..forms import form_of, not_zero
from ..graph import can_be_read_again, for_each_edge, function_of
from ..higher import in_forward_mode, left, remember, tangent_of
from ..masks import Mask, was_broadcast
from ..registry import is_own
from .step import Results
from .transferred import Transferred

_ONCE = "its saved tensors can be read only once here"


class CustomVJP(Transferred):
    """The run of a derivative with a second formula. PyTorch's runs as usual, and the second repairs its results."""

    always_runs = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        derivative = self.function.derivative
        all_count = all(mask is None for mask in self.masks) and all(value is not None for value in arriving)
        if all_count and not self.selects:
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
                ended = [_repaired(exact, result) for exact, result in zip(results, by_edge, strict=True)]
            except (TypeError, ValueError, RuntimeError) as error:
                raise error if is_own(derivative) else RuleFailed(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            is_hidden = isinstance(error, CheckpointError)  # older releases don't show this hook in advance
            self.failed(name, NotFollowed(_ONCE) if is_hidden else error)
            return results, [None] * len(results)
        return [value for value, _ in ended], [mask for _, mask in ended]


def _repaired(exact: Any, masked: Any) -> tuple[Any, Mask]:
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
    if (exact.requires_grad or in_forward_mode()) and is_finite(exact) and is_finite(tangent_of(exact)):
        # Keep PyTorch's own tensor, with its record.
        remember(exact, mask)
        return exact, mask
    return left([masked], [value])[0], mask
