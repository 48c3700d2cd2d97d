"""From the events of a backward pass to the kind of each origin. Pure functions: no hooks, no state, no names.

If the loss ignores the elements of a birth, the origin is contaminated. The shadow of the pass, which `ignoring` runs,
knows which elements the loss uses. Without a shadow, the loss is taken to use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..functions.graph import Edge
from .events import Born, Elements, Events, Reached
from .provenance import Birth, Provenance
from .report import Kind


class Shadow(Protocol):
    """The outcome of the same pass run by `ignoring`."""

    @property
    def masks(self) -> Mapping[Edge, Tensor | None]:
        """By edge, the elements that the loss uses; None for all of them."""

    @property
    def finite(self) -> Mapping[Any, bool]:
        """By node, whether what `ignoring` passes on there is finite."""

    def fixed(self, target: Any, edge: Edge) -> bool:
        """Whether `ignoring` gave a finite gradient there."""


class Verdict(NamedTuple):
    """The kind of an origin.

    Attributes:
        kind: its kind.
        fixed: whether `ignoring` gave finite gradients everywhere it reached; None if that is not known.
        is_sure: whether it is known if the loss uses the elements.
    """

    kind: Kind
    fixed: bool | None = None
    is_sure: bool = True


class Diagnosis(NamedTuple):
    """A birth that reached something.

    Attributes:
        birth: the birth.
        verdict: its kind.
        targets: the tensors that it reached, or their names.
        path: the functions on the longest path to them.
        is_implied: whether an origin in the loss implies it, so that the report leaves it out.
        tie: how PyTorch treats it, if it is at a tie.
        is_hidden: whether it shows only once the contaminated origins are fixed.
        has_others: whether gradients stay not finite because of other origins, which the loss uses.
    """

    birth: Birth
    verdict: Verdict
    targets: Sequence[Tensor | str]
    path: Sequence[str]
    is_implied: bool = False
    tie: str = ""
    is_hidden: bool = False
    has_others: bool = False


def diagnose(events: Events, shadow: Shadow | None, known: Mapping[Birth, Verdict]) -> list[Diagnosis]:
    """The births that reached the loss or a gradient, in order of time.

    Args:
        events: what happened in a backward pass.
        shadow: the outcome of the same pass run by `ignoring`, if it was run.
        known: the verdicts of earlier passes, which still hold.
    """
    reached_by: dict[Birth, list[Reached]] = {}
    for reached in events.reached:
        for birth in reached.provenance.births:
            reached_by.setdefault(birth, []).append(reached)
    has_bad_loss = any(reached.edge is None for reached in events.reached)
    elements = Elements(events)
    found = []
    for birth, ends in sorted(reached_by.items(), key=lambda pair: pair[0].number):
        verdict = known.get(birth) or _verdict(birth, ends, events, elements, shadow)
        path = max((reached.provenance.path_of(birth) for reached in ends), key=len)
        # If the loss is too large, its gradient often is too large as well.
        is_implied = has_bad_loss and birth.phase == "backward" and verdict.kind == "overflow"
        found.append(Diagnosis(birth, verdict, [reached.target for reached in ends], path, is_implied))
    return found


def diagnose_results(provenances: Iterable[Provenance]) -> list[Diagnosis]:
    """The births that reached a result of a block in which no backward pass ran, in order of time."""
    paths: dict[Birth, tuple[str, ...]] = {}
    for provenance in provenances:
        for birth, path in provenance.paths.items():
            if birth.nature != "meant":
                paths.setdefault(birth, path)
    found = sorted(paths.items(), key=lambda pair: pair[0].number)
    return [Diagnosis(birth, Verdict(birth.kind_if_used), ["a result"], path) for birth, path in found]


def _verdict(
    birth: Birth, ends: Sequence[Reached], events: Events, elements: Elements, shadow: Shadow | None
) -> Verdict:
    if birth.held:
        return Verdict("bad input")
    leaves = [(reached.target, reached.edge) for reached in ends if reached.edge is not None]
    fixed = None
    if shadow is not None and leaves:
        fixed = all(shadow.fixed(target, edge) for target, edge in leaves)
    used = True if shadow is None else _is_used(birth, events, elements, shadow)
    in_loss = len(leaves) < len(ends)
    inside = events.inside.get(birth)
    if inside is not None and (in_loss or not fixed):
        return Verdict(inside.kind, fixed, is_sure=inside.is_sure and not events.lacks_shadow)
    is_sure = not events.lacks_shadow and (in_loss or not events.is_partial)
    if used is False or (fixed and not in_loss and not elements.is_made_by_hook(birth)):
        return Verdict("contaminated", fixed)
    return Verdict(birth.kind_if_used, fixed, is_sure)


def _is_used(birth: Birth, events: Events, elements: Elements, shadow: Shadow) -> bool | None:
    """Whether the loss uses the elements of a birth; None if that cannot be told."""
    if birth.phase == "backward":
        if elements.is_made_by_hook(birth):
            return True
        used = [_is_used_at(node, born, events, shadow) for node, born in elements.born[birth]]
        return None if None in used else any(used)
    carried = elements.carried.get(birth)
    return None if carried is None else any(_counts(edge, entries, events, shadow) for edge, entries in carried)


def _is_used_at(node: Any, born: Born, events: Events, shadow: Shadow) -> bool | None:
    """Whether the loss uses elements that were born at a node; None if `ignoring` did not follow the node."""
    if born.is_opaque and (node, 0) in shadow.masks:
        return _counts((node, 0), born.entries, events, shadow)
    finite = shadow.finite.get(node)
    return None if finite is None else not finite


def _counts(edge: Edge, entries: Tensor, events: Events, shadow: Shadow) -> bool:
    """Whether the loss uses one of the elements of what arrives at an edge."""
    if edge in events.roots:
        return True
    if edge not in shadow.masks:
        return False
    mask = shadow.masks[edge]
    return bool((mask & entries).any()) if mask is not None and mask.shape == entries.shape else True
