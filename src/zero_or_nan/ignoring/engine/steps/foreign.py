"""Derivatives that are not PyTorch's own code: about some of them nothing is known, others have a record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....functions.graph import forward_class, runs_of_the_engine
from ....masks.cotangent import Cotangent, NotFollowed, can_carry, is_finite
from ....masks.mask import all_count
from ....masks.numbers import not_zero, values_of
from .step import Results, Step, is_custom, name_of


class Opaque(Step):
    """The run of code without a record: it gets plain tensors, and all elements of its results count.

    If this loses a mask and a gradient ahead is not finite, the pass warns. It warns at once if NaN may appear in a
    place that the pass can't check: if the code does more than return its results, or if there will be a later pass.
    """

    selects = False

    on_cotangents = False
    always_runs = True

    reason = "not one of PyTorch's operators"
    """Why the code is not followed, for the warning."""

    at_once = False
    """Whether the code may have sent NaN to a place that the pass can't check."""

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        self._ignores = any(not all_count(mask) for mask in self.masks)
        self._is_pytorchs = self._ignores and is_pytorchs(self.node)
        self._before = runs_of_the_engine() if self._ignores and not self._is_pytorchs else 0
        self._versions = [_version(value) for value in arriving]
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        handed_on = {
            id(value): mask
            for value, mask, version in zip(arriving, self.masks, self._versions, strict=True)
            if value is not None and _version(value) == version
        }
        own = [r for r in results if isinstance(r, Tensor) and id(r) not in handed_on and can_carry(r)]
        if not self._ignores:
            if self.at_once or self._may_lose(own):
                self._could_not_follow(self.at_once)
            return results, [None] * len(results)
        rest = {id(result) for result in results if id(result) in handed_on}
        lost = [m for v, m in zip(arriving, self.masks, strict=True) if m is not None and id(v) not in rest]
        is_lost = bool(own) or any(not all_count(mask) for mask in lost)
        at_once = self.at_once or is_lost and torch.is_grad_enabled() or self._does_more(results)
        if is_lost or at_once or self._may_lose(own):
            self._could_not_follow(at_once)
        return results, [handed_on.get(id(result)) for result in results]

    def _may_lose(self, own: Sequence[Tensor]) -> bool:
        """True if a result of the code is not finite, or is a zero that may be multiplied by NaN or infinity ahead.

        The code may select, so its zeros may be ignored.
        """
        if not all(map(is_finite, own)):
            return True
        return not self.owner.is_safe_ahead(self.node) and not all(bool(values_of(r).all()) for r in own)

    def _could_not_follow(self, at_once: bool) -> None:
        is_pytorchs_own = is_pytorchs(self.node)
        reason = "a Function of PyTorch's own without a record" if is_pytorchs_own else self.reason
        self.owner.failed(name_of(self.node), NotFollowed(reason), suspected=is_pytorchs_own or not at_once)

    def _does_more(self, results: Sequence[Any]) -> bool:
        """True if a gradient may bypass the results: a result is missing, or the code ran a backward pass itself."""
        if self._is_pytorchs:
            return False
        wanted = zip(self.node.next_functions, results, strict=False)
        is_missing = any(ahead is not None and result is None for (ahead, _), result in wanted)
        return is_missing or self.ran_backward

    @functools.cached_property
    def ran_backward(self) -> bool:
        """Whether the code ran a backward pass itself."""
        return runs_of_the_engine() != self._before + 1  # to count is a run, too


def _version(value: Any) -> int | None:
    """How often a tensor was written into; None for anything else."""
    return value._version if isinstance(value, Tensor) else None


def is_pytorchs(node: Any) -> bool:
    """True if the node of a Function in Python is PyTorch's own."""
    function = forward_class(node)
    return function is not None and function.__module__.startswith("torch.") and not is_custom(node)


class Traced(Step):
    """The run of a derivative in Python. Its record says that it consists of PyTorch's operators alone."""

    is_anothers = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        if any(value is None for value in arriving):
            self.node.apply = self._apply  # the engine makes up zeros for None, after its hooks have run
        return super().begin(arriving)

    def _apply(self, *cotangents: Any) -> Any:
        """Run the derivative. A cotangent that did not arrive is replaced by zeros that are ignored."""
        self.abandon()
        return self.node.apply(
            *(self.all_ignored(i) if type(value) is Tensor else value for i, value in enumerate(cotangents))
        )

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self.abandon()
        not_cotangents = [r for r in results if isinstance(r, Tensor) and type(r) is not Cotangent and can_carry(r)]
        if not_cotangents and any(mask is not None and not bool(mask.all()) for mask in self.masks):
            error = NotFollowed("a result of its backward is no Cotangent: it was made without operators")
            self.owner.failed(name_of(self.node), error, suspected=True)
        values, masks = super().end(results, arriving)
        # A write without an operator, into the memory of a Cotangent, is not in the mask: count what is not 0.
        return values, [
            mask if mask is None or value is None else mask | not_zero(value)
            for value, mask in zip(values, masks, strict=True)
        ]

    def abandon(self) -> None:
        vars(self.node).pop("apply", None)
