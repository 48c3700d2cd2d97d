"""A node that passes on a NaN or an infinity: the user's call behind it, experiments with it, and the births there.

The derivative of a node runs again on finite cotangents. The result shows whether the node made the elements, or only
passed them on. Elements that it made were born in the call that the node comes from, or only in backward.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import is_elementwise, numerics_of, numerics_of_node
from ...ignoring.inside import (
    Edge,
    Graph,
    any_of,
    function_of,
    is_checkpoint,
    is_pytorchs,
    is_region,
    run,
    senders_of,
)
from ..program.code import Place, place_here, users_frame
from ..program.rerun import on_copies, rerun
from ..program.tensors import are_finite, here_of, is_finite, not_finite, numbers_of
from .arithmetic import Computation, first_born, limit, number, operand
from .call import Call, Change, come_in, describe, finite_ones
from .diagnosis import Born, Events
from .findings import CALLED, COMPILED, Carried, Findings, can_run_again, passed_by, runs_hook, saved_by, share_readable
from .provenance import Birth, Provenance, all_births


class Caller(NamedTuple):
    """The call that a node comes from, and the node that knows it: itself, or the nearest node that it works for."""

    node: Any
    name: str
    place: Place

    @property
    def call(self) -> Call:
        """The call, without its function and arguments."""
        return Call(None, self.name, self.place)


class Callers:
    """The calls that the nodes of one graph come from."""

    def __init__(self, graph: Graph, findings: Findings) -> None:
        self._graph, self._findings = graph, findings
        self._callers: dict[Any, Any] = {}

    def of(self, node: Any) -> Caller:
        """The user's call that a node comes from."""
        called = node.metadata.get(CALLED)
        if called is not None:
            return Caller(node, *called)
        if is_region(node):
            return Caller(node, COMPILED, self._findings.place_of_region(node) or place_here(users_frame()))
        if node not in self._callers:
            self._callers[node] = self._caller(node)
        caller = self._callers[node]
        if caller is not None:
            return Caller(caller, *caller.metadata[CALLED])
        return Caller(node, function_of(node), self._findings.compiled_at or place_here(users_frame()))

    def _caller(self, node: Any) -> Any:
        """The nearest node that knows its call, among those that a node sends its gradient for; None if none does."""
        waiting, seen = deque([node]), {node}
        while waiting:
            at = waiting.popleft()
            if not waiting and at in self._callers:  # all paths lead through it
                return self._callers[at]
            if CALLED in at.metadata:
                return at
            for sender, _ in self.senders.get(at, ()):
                if sender not in seen:
                    seen.add(sender)
                    waiting.append(sender)
        return None

    @functools.cached_property
    def senders(self) -> dict[Any, list[Edge]]:
        """By node, the nodes that send it gradients, each with the number of the cotangent."""
        return senders_of(self._graph)


# The derivative at one node of the graph, and experiments with it.


def only_passes_on(node: Any, arriving: Sequence[Any]) -> bool:
    """Whether a node returns finite gradients for finite cotangents. If this can't be tried, True."""
    again = _again(node, arriving, finite_ones)
    return again is None or are_finite(again)


def is_element_by_element(node: Any, arriving: Sequence[Any], bad: Tensor, came: Tensor | None = None) -> bool:
    """Whether each element of a gradient depends on the same element of the cotangent.

    `bad` says where the gradient is not finite, and `came` where the cotangent is not finite, if this is known.
    """
    if len(arriving) != 1 or not is_elementwise(node):
        return False
    cotangent = numbers_of(arriving[0]) if came is None else came
    return cotangent is not None and cotangent.shape == bad.shape


def multiplication(node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> str:
    """The cotangent times the derivative at the first of the elements, as text. For a quotient, the division."""
    if numerics_of_node(node).divides and (divided := _first_born(node, arriving, bad)) is not None:
        return divided.text
    with contextlib.suppress(Exception):
        cotangent = numbers_of(arriving[0])
        if cotangent is not None and is_element_by_element(node, arriving, bad):
            index = tuple(bad.nonzero()[0].tolist())
            slope = math.inf
            if can_run_again(node):
                with rerun():
                    slope = run(node, torch.ones_like(cotangent))[at][index].item()
            point = _point(node, index, bad)
            if not (point and math.isnan(slope)):  # at a finite point, the computation says more
                return f"{number(cotangent[index].item())} × {number(slope)}{point}"
    born = _first_born(node, arriving)
    return "" if born is None else born.text


def is_only_too_large(node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> bool:
    """Whether the true value is a number that does not fit the dtype."""
    if not can_run_again(node):
        return False
    with contextlib.suppress(Exception):
        again = _again(node, arriving, lambda value: torch.sign(finite_ones(value)) * 1e-3)
        slopes = None if again is None else numbers_of(again[at])
        if slopes is not None and is_finite(slopes.sum_to_size(bad.shape)[bad]):  # a bias was broadcast
            return True
    if is_elementwise(node):
        return not _is_at_pole(node, tuple(bad.nonzero()[0].tolist()), bad)
    born = _first_born(node, arriving)
    return born is not None and not born.is_pole


def _again(node: Any, arriving: Sequence[Any], change: Change | None = None) -> Sequence[Any] | None:
    """What a derivative gives for copies of cotangents, changed first; None if it can't run again."""
    if can_run_again(node):
        with contextlib.suppress(Exception), rerun():
            return run(node, *on_copies(list(arriving), change))
    return None


def _first_born(node: Any, arriving: Sequence[Any], entries: Tensor | None = None) -> Computation | None:
    """The first number that is not finite when a derivative runs again on finite cotangents."""
    if can_run_again(node):
        with contextlib.suppress(Exception):
            finite = on_copies(list(arriving), finite_ones)
            return first_born(lambda: run(node, *finite), entries)
    return None


def _is_at_pole(node: Any, index: tuple[int, ...], bad: Tensor) -> bool:
    """Whether a derivative is infinite, or does not exist, at the saved number of an element; True if none is known."""
    is_known = False
    for saved in saved_by(node):
        with contextlib.suppress(Exception):
            here = numbers_of(saved)
            value = (saved if here is None else here).broadcast_to(bad.shape)[index].item()
            if value == 0 or value - value != 0 or value in numerics_of_node(node).steep_at:
                return True
            is_known = True
    return not is_known


def _point(node: Any, index: tuple[int, ...], bad: Tensor) -> str:
    """The number at which a derivative was taken, as text, as far as the node knows it."""
    known = numerics_of_node(node)
    if runs_hook(node):
        return ""
    with contextlib.suppress(Exception):
        saved = getattr(node, "_saved_self", None)
        if isinstance(saved, Tensor):
            value = here_of(saved).broadcast_to(bad.shape)[index].item()
        else:
            assert known.inverse is not None
            value = known.inverse(here_of(node._saved_result)[index].item())
        return f", the derivative of {known.name} at {operand(value)}" if math.isfinite(value) else ""
    return ""


def value_of(node: Any, index: tuple[int, ...], shape: Sequence[int]) -> float | None:
    """The element of the result of a function of one tensor in the forward pass; None if its node does not know it."""
    if not can_run_again(node):
        return None
    with contextlib.suppress(Exception), rerun():
        result = getattr(node, "_saved_result", None)
        if isinstance(result, Tensor):
            return float(here_of(result.detach())[index]) if here_of(result).shape == shape else None
        here = here_of(node._saved_self.detach())[index]
        exponent = getattr(node, "_saved_exponent", None)
        return float(getattr(torch, numerics_of_node(node).name)(here, *([] if exponent is None else [exponent])))
    return None


class NodeBirths:
    """The births at the nodes of one graph. Births in backward are added to the events.

    Attributes:
        loss: the provenance of a loss that is not finite.
        hidden: the births in the shadow. In the pass itself, another NaN may arrive there first.
        inside: the births since the previous node, inside a derivative that the user wrote.
    """

    def __init__(
        self,
        findings: Findings,
        events: Events,
        callers: Callers,
        carried: Mapping[Any, Carried],
        inside: list[Birth],
    ) -> None:
        self._findings, self._events, self._callers = findings, events, callers
        self._carried_by = carried
        self.loss: Provenance | None = None
        self.hidden: list[Birth] = []
        self.inside = inside

    def of(
        self, node: Any, caller: Caller, arriving: Sequence[Any], at: int, result: Tensor, bad: Tensor
    ) -> list[Birth]:
        """The births of elements that a node made. They happened in the call that the node comes from, or only now."""
        inside = self._findings.provenances.of(result)
        if inside is not None and is_checkpoint(node):
            return list(inside.births)
        new = self._at_finite_operands(node, caller, bad)
        old = bad if new is None else bad & ~new
        births: list[Birth] = []
        if any_of(old):
            births = self._from_forward(node, caller, old)
            untold = [birth for birth in births if not birth.in_backward]
            if untold:  # the text takes another run of the derivative, so it is made for the first node alone
                text = multiplication(node, arriving, at, old)
                for birth in untold:
                    birth.in_backward = text
            if births and (new is None or not any_of(new)):
                return births
        if node not in self._events.born:
            entries = new if births and new is not None else bad
            text, too_large = (
                multiplication(node, arriving, at, entries),
                is_only_too_large(node, arriving, at, entries),
            )
            history = self._findings.history
            call, step = caller.call, history.of_node(caller.node)
            own = inside.births if inside is not None else self.inside  # PyTorch has summed up what was broadcast
            if not text and own and not is_pytorchs(node):  # the code of the derivative is the user's own
                first = own[0]
                step = history.of_birth(first)
                if not getattr(node, "_forward_cls", type(node)).__module__.startswith("torch."):
                    call = call._replace(place=first.place)
                text, too_large = first.operands, first.too_large
            birth = describe("made", call, result, entries, text, "backward", too_large=too_large)
            history.note_birth_in(birth, step)
            value = value_of(node, birth.where[0], birth.shape)
            self._events.born[node] = Born(birth, entries, not is_pytorchs(node), value)
        return [*births, self._events.born[node].birth]

    def of_sum(self, edge: Edge, here: Tensor, has_held: bool) -> Provenance | None:
        """The provenance of a sum at an edge that is too large, although the gradients that were added up were finite.

        `has_held` says whether `.grad` was one more finite number in the sum.
        """
        senders = [node for node, slot in self._callers.senders.get(edge[0], ()) if slot == edge[1]]
        count = len(senders) + has_held
        if count < 2 or bool(here.isnan().any()):
            return None
        call = self._callers.of(senders[0]).call
        text = f"the sum of {count} gradients > {limit(here.dtype)}"
        birth = describe("made", call, here, not_finite(here), text, "backward", too_large=True)
        return Provenance({birth: (call.name,)})

    def add_nothing(self, node: Any, caller: Caller, provenances: Sequence[Provenance], bad: Tensor) -> bool:
        """Whether the births that a node could add have already arrived there, and already have their text."""
        if is_elementwise(node) or is_checkpoint(node):
            return False
        births = self._from_forward(node, caller, bad)
        have_arrived = (any(birth in provenance for provenance in provenances) for birth in births)
        return bool(births) and all(birth.in_backward for birth in births) and all(have_arrived)

    def _from_forward(self, node: Any, caller: Caller, bad: Tensor) -> list[Birth]:
        """The births in the forward pass that made a factor of this node not finite, at some elements."""
        pairs = [pair for pairs in self._carried(node, caller).values() for pair in pairs]
        passed = self._findings.births.own(passed_by(caller.node), lambda birth: birth)
        if is_elementwise(node):
            here = [pair for pair in pairs if pair[1].shape != bad.shape or any_of(pair[1] & bad)]
            pairs = here or pairs
        elif numerics_of_node(node).products:  # what the call itself made is in the result, and is no factor
            pairs = [pair for pair in pairs if pair[0] in passed] or pairs
        births = self._at_fault(birth for birth, _ in pairs)
        if not births:
            births = self._at_fault(all_births(filter(None, map(self._findings.of_bad, saved_by(node)))))
        births = births or self._at_fault(passed) or self._came_in(node, caller)
        if numerics_of(caller.name).ignores_infinity:  # such an infinity is not at fault beside another birth
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
        found = (became.get(each, each) for each in births if each.nature != "meant" or each in became)
        return list(dict.fromkeys(found))

    def _carried(self, node: Any, caller: Caller) -> Carried:
        return self._carried_by.get(node) or self._carried_by.get(caller.node) or {}

    def _at_finite_operands(self, node: Any, caller: Caller, bad: Tensor) -> Tensor | None:
        """Those of the elements at which the forward pass was finite too; None if that cannot be told."""
        if not is_elementwise(node):
            return None
        entries = bad.clone()
        for pairs in self._carried(node, caller).values():
            for _, elements in pairs:
                if elements.shape != bad.shape:
                    return None
                entries &= ~elements
        for saved in saved_by(node):
            try:
                here = numbers_of(saved)
                entries &= torch.isfinite(saved) if here is None else ~not_finite(here)
            except RuntimeError:  # broadcast along the way
                return None
        return entries

    def _came_in(self, node: Any, caller: Caller) -> list[Birth]:
        """The birth of data whose NaN the result did not show: fused attention may give 0 for a row of NaN."""
        for saved in saved_by(node):
            here = numbers_of(saved)
            if here is not None and saved.grad_fn is None and bool(here.isnan().any()):
                return [come_in(saved, here, caller.call)]
        return []

    def note_hidden(self, node: Any, at: int, bad: Tensor) -> None:
        """Note the births at a node in the shadow, while its derivative can still run."""
        caller = self._callers.of(node)
        share_readable(node, caller.node)
        if not can_run_again(node):
            return
        ones = [torch.ones(each.shape, dtype=each.dtype, device=each.device) for each in node._input_metadata]
        again = _again(node, ones)
        slopes = None if again is None else numbers_of(again[at])
        if slopes is None or slopes.shape != bad.shape:
            return
        bad = bad & not_finite(slopes)
        if not any_of(bad):
            return
        births = self._from_forward(node, caller, bad)
        if not births:
            text = multiplication(node, ones, at, bad).removeprefix("1 × ")
            too_large = is_only_too_large(node, ones, at, bad)
            births = [describe("made", caller.call, slopes, bad, text, "backward", too_large=too_large)]
        self.hidden += [birth for birth in births if birth not in self.hidden]
