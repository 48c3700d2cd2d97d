"""A user's derivative in Python without a record: a tape of its operators shows what it does to ignored elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....functions.record import UNKNOWN, Function
from ....masks.cotangent import NotFollowed, can_carry, is_finite
from ....masks.mask import Mask, everywhere
from ....masks.numbers import is_dense
from ...engine.higher import in_forward_mode
from ...engine.plan import chooses_step
from ...engine.steps.foreign import Opaque, is_pytorchs
from ...engine.steps.recomputed import CHECKPOINT
from ...engine.steps.step import Results, Step, name_of
from .memory import Lost
from .tape import Tape


@chooses_step
def _taped(node: Any, function: Function) -> type[Step] | None:
    is_users = function is UNKNOWN and not is_pytorchs(node) and node.name() != CHECKPOINT
    return Taped if is_users else None


_MAY_SELECT = "it may select, and has no record"
"""Why the code is not followed, although it calls PyTorch's operators only."""


class Taped(Opaque):
    """The run of a user's derivative in Python. If ignored elements arrive, a tape follows its operators.

    What the tape can't follow is opaque. If the derivative is recorded, to be differentiated again, PyTorch records the
    operators on plain tensors. This record is right for all elements but the ignored ones, which are left out of it. If
    the tape had to repair another element, the derivative is opaque.
    """

    is_anothers = True
    tape: Tape | None = None
    has_failed = False
    """Whether a warning names an operator of the derivative."""

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        super().begin(arriving)
        self._arriving = arriving
        if (
            self._ignores
            and not in_forward_mode()
            and all(value is None or can_carry(value) and is_dense(value) for value in arriving)
        ):
            self.node.apply = self._apply  # called by the engine, after it has made up zeros for None
        return arriving

    def _apply(self, *cotangents: Any) -> Any:
        """Run the derivative, with a tape."""
        self.abandon()
        tape = Tape(self)
        for value, given, mask in zip(cotangents, self._arriving, self.masks, strict=True):
            if given is not None and value is not given:  # the node runs in another thread, too
                return self.node.apply(*cotangents)
            if isinstance(value, Tensor):
                with torch.no_grad():
                    tape.arrive(value, everywhere(False, value) if given is None else mask)
        results = tape.run(self.node.apply, cotangents, self.owner.forward)
        self.tape = tape
        return results

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self.abandon()
        tape, self.tape = self.tape, None
        if tape is not None:
            tape.stop()
        if tape is None or self.ran_backward:
            self.reason = self.reason if self._ignores else _MAY_SELECT
            return super().end(results, arriving)
        ended = [tape.result(value) for value in results]
        if tape.lost is not None:
            self._lost(tape.lost)
            return super().end(results, arriving)
        values, masks = [value for value, _ in ended], [mask for _, mask in ended]
        if torch.is_grad_enabled():  # a result without its ignored elements is a selection for a later pass
            selected = [r if m is None else torch.where(m, r, 0) for r, m in zip(results, masks, strict=True)]
            values, repaired = selected, values
            if any(v is not r and not torch.allclose(v, r, 0, 0, True) for v, r in zip(values, repaired, strict=True)):
                self.reason = "it mixes ignored elements with others, and is differentiated again"
                return super().end(results, arriving)
        # The code may select: a zero that it writes may mean "not selected". Does anything multiply that zero?
        if not self.has_failed and (
            not all(map(is_finite, values))
            or not self.owner.is_safe_ahead(self.node)
            and any(map(_has_counted_zeros, values, masks))
        ):
            self.owner.failed(name_of(self.node), NotFollowed(_MAY_SELECT), suspected=True)
        return values, masks

    def _lost(self, error: Exception) -> None:
        """Note why the tape could not follow the derivative."""
        if isinstance(error, Lost):
            self.reason, self.at_once = str(error), error.at_once
        else:
            self.owner.failed(name_of(self.node), error, suspected=True)

    def failed(self, operator: str, error: Exception) -> None:
        self.has_failed = True
        super().failed(operator, error)

    def abandon(self) -> None:
        vars(self.node).pop("apply", None)


def _has_counted_zeros(value: Any, mask: Mask) -> bool:
    """Whether a result has a zero that is not ignored."""
    if not isinstance(value, Tensor) or not can_carry(value) or not is_dense(value):
        return False
    counted = value.numel() if mask is None else mask.count_nonzero()
    return bool(value.count_nonzero() < counted)
