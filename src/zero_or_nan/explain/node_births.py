"""The births of what a node passes on: in the call that it comes from, or only in backward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functions.graph import KINDS, run
from .arithmetic import rerun
from .births import come_in, describe
from .derivatives import is_entrywise, is_only_too_large, is_product, multiplication
from .events import Born, Events
from .findings import Findings
from .functions import MEANT
from .nodes import Carried, can_run_again, passed_by, saved_by, share_readable
from .originations import Origination, Originations
from .provenance import Birth, Provenance, all_births
from .tensors import any_of, not_finite, numbers_of
from .ties import value_of


class NodeBirths:
    """The births at the nodes of one graph.

    Args:
        findings: those of the watch.
        events: get the births that happen in backward.
        originations: those of the graph.
        carried: by node, the elements of its outputs that were not finite in the forward pass.

    Attributes:
        loss: the provenance of a loss that is not finite.
        hidden: the births in the shadow. In the pass itself, another NaN may arrive there first.
    """

    def __init__(
        self, findings: Findings, events: Events, originations: Originations, carried: Mapping[Any, Carried]
    ) -> None:
        self._findings, self._events, self._originations = findings, events, originations
        self._carried_by = carried
        self.loss: Provenance | None = None
        self.hidden: list[Birth] = []

    def of(
        self,
        node: Any,
        origination: Origination,
        arriving: Sequence[Any],
        results: Sequence[Any],
        at: int,
        bad: Tensor,
    ) -> list[Birth]:
        """The births of elements that a node made: in the call that it comes from, or only now."""
        result = results[at]
        inside = self._findings.provenances.of(result)
        if inside is not None and type(node).__name__ == "CheckpointFunctionBackward":
            return list(inside.births)
        new = self._at_finite_operands(node, origination, bad)
        old = bad if new is None else bad & ~new
        births: list[Birth] = []
        if any_of(old):
            births = self._from_forward(node, origination, old)
            untold = [birth for birth in births if not birth.in_backward]
            if untold:  # the text takes another run of the derivative, so it is made for the first node alone
                text = multiplication(node, arriving, at, old)
                for birth in untold:
                    birth.in_backward = text
            if births and (new is None or not any_of(new)):
                return births
        if node not in self._events.born:
            entries = new if births and new is not None else bad
            text = multiplication(node, arriving, at, entries) or (inside.births[0].operands if inside else "")
            too_large = is_only_too_large(node, arriving, at, entries)
            birth = describe("made", origination.call, result, entries, text, "backward", too_large=too_large)
            value = value_of(node, birth.where[0], birth.shape)
            self._events.born[node] = Born(birth, entries, type(node) not in KINDS, value)
        return [*births, self._events.born[node].birth]

    def add_nothing(self, node: Any, origination: Origination, provenances: Sequence[Provenance], bad: Tensor) -> bool:
        """Whether the births that a node could bring in have arrived there already, and their text is made."""
        if is_entrywise(node) or type(node).__name__ == "CheckpointFunctionBackward":
            return False
        births = self._from_forward(node, origination, bad)
        return bool(births) and all(
            birth.in_backward and any(birth in provenance for provenance in provenances) for birth in births
        )

    def _from_forward(self, node: Any, origination: Origination, bad: Tensor) -> list[Birth]:
        """The births in the forward pass that made a factor of this node not finite, at some elements."""
        pairs = [pair for pairs in self._carried(node, origination).values() for pair in pairs]
        passed = self._findings.births.own(passed_by(origination.node), lambda birth: birth)
        if is_entrywise(node):
            here = [pair for pair in pairs if pair[1].shape != bad.shape or any_of(pair[1] & bad)]
            pairs = here or pairs
        elif is_product(node):  # what the call itself made is in the result, and is no factor
            pairs = [pair for pair in pairs if pair[0] in passed] or pairs
        births = self._at_fault(birth for birth, _ in pairs)
        if not births:
            births = self._at_fault(all_births(filter(None, map(self._findings.of_bad, saved_by(node)))))
        births = births or self._at_fault(passed) or self._came_in(node, origination)
        if origination.name in MEANT:  # an infinity that leaves an element out is not at fault beside another birth
            births = [birth for birth in births if birth.infinite != -math.inf] or births
        return births

    def _at_fault(self, births: Iterable[Birth]) -> list[Birth]:
        """The births, without infinities that the code wrote down.

        If backward multiplies such an infinity by 0, the other factor is at fault. If the loss itself is not finite
        because of the infinity, the infinity is.
        """
        births = list(dict.fromkeys(births))
        if all(birth.nature != "meant" for birth in births):
            return births
        in_loss = self.loss.births if self.loss is not None else ()
        became = {meant: each for each in in_loss for meant in (*each.made_of, each)}
        return list(
            dict.fromkeys(became.get(each, each) for each in births if each.nature != "meant" or each in became)
        )

    def _carried(self, node: Any, origination: Origination) -> Carried:
        return self._carried_by.get(node) or self._carried_by.get(origination.node) or {}

    def _at_finite_operands(self, node: Any, origination: Origination, bad: Tensor) -> Tensor | None:
        """Those of the elements at which the forward pass was finite too; None if that cannot be told."""
        if not is_entrywise(node):
            return None
        entries = bad.clone()
        for pairs in self._carried(node, origination).values():
            for _, mask in pairs:
                if mask.shape != bad.shape:
                    return None
                entries &= ~mask
        for saved in saved_by(node):
            try:
                here = numbers_of(saved)
                entries &= torch.isfinite(saved) if here is None else ~not_finite(here)
            except RuntimeError:  # broadcast along the way
                return None
        return entries

    def _came_in(self, node: Any, origination: Origination) -> list[Birth]:
        """The birth of data whose NaN the result did not show: fused attention may give 0 for a row of NaN."""
        for saved in saved_by(node):
            here = numbers_of(saved)
            if here is not None and saved.grad_fn is None and bool(here.isnan().any()):
                return [come_in(saved, here, origination.call)]
        return []

    def note_hidden(self, node: Any, at: int, bad: Tensor) -> None:
        """Note what a node makes in the shadow, now that its derivative can still run."""
        origination = self._originations.of(node)
        share_readable(node, origination.node)
        if not can_run_again(node):
            return
        ones = [torch.ones(each.shape, dtype=each.dtype, device=each.device) for each in node._input_metadata]
        slopes = None
        with contextlib.suppress(Exception), rerun():
            slopes = numbers_of(run(node, *ones)[at])
        if slopes is None or slopes.shape != bad.shape:
            return
        bad = bad & not_finite(slopes)
        if not any_of(bad):
            return
        births = self._from_forward(node, origination, bad)
        if not births:
            text = multiplication(node, ones, at, bad).removeprefix("1 × ")
            too_large = is_only_too_large(node, ones, at, bad)
            births = [describe("made", origination.call, slopes, bad, text, "backward", too_large=too_large)]
        self.hidden += [birth for birth in births if birth not in self.hidden]
