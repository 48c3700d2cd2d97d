"""Finds the kind of each origin from the events of a backward pass, without hooks or names.

If the loss ignores the elements of a birth, the origin is contaminated. The shadow of the pass, which `ignoring` runs,
knows which elements the loss uses. Without a shadow, we assume that the loss uses them.

At a *tie*, only a convention decides whether the loss uses an element. At 0, the slope of `relu` may be any number
between 0 and 1. PyTorch chooses 0, so the loss ignores the element. For `maximum`, it chooses a half, so the loss uses
it. `clamp` with a number chose 1 before PyTorch 2.14, and chooses 0 since (pytorch#191142). The kind of an origin
follows the convention, and the report says so. A tie is found only if nothing but views and multiplications are between
the element and the function. After a sum or a layer, the value that arrives at the function is unknown, so the report
says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from ...functions.numerics import numerics_of_node
from ...ignoring.inside import Edge, Graph, Observer, senders_of
from ..program.code import Place
from ..program.tensors import are_finite, bad_of
from .findings import CALLED, Carried
from .provenance import Birth, Kind, Provenance

RESULT, WRITTEN = "a result", "a value that your code wrote"
"""What a number reached without the loss or a gradient: a result that no function has used, or a leaf."""


class Born(NamedTuple):
    """A birth at a node in backward.

    Attributes:
        birth: the birth.
        entries: its elements in the gradient that the node passes on.
        is_opaque: whether the node's derivative is code outside PyTorch.
        value: the function's result in the forward pass at the first of the elements, if it is known.
    """

    birth: Birth
    entries: Tensor
    is_opaque: bool
    value: float | None = None


class Verdict(NamedTuple):
    """The kind of an origin.

    Attributes:
        kind: its kind.
        fixed: whether `ignoring` gave finite gradients wherever the birth reached; None if this is unknown.
        is_sure: whether it is certain if the loss uses the elements.
        is_zero: whether these gradients are 0.
    """

    kind: Kind
    fixed: bool | None = None
    is_sure: bool = True
    is_zero: bool = False


class Inside(NamedTuple):
    """The results of the pass inside a compiled region for a birth there: its verdict for the uncompiled code, and how
    PyTorch treats it, if it is at a tie."""

    verdict: Verdict
    tie: str


class Reached(NamedTuple):
    """The end of a path: a leaf, a tensor whose gradient was requested, or the loss, which has no edge."""

    target: Tensor | str
    edge: Edge | None
    provenance: Provenance


@dataclass
class Events:
    """The events of a backward pass, and of the passes inside it.

    Attributes:
        roots: the edges at which the pass begins.
        carried: by node, the elements of its outputs that were not finite in the forward pass.
        born: by node, the birth there in backward.
        reached: the ends of paths that were reached, in order of time.
        inside: by birth in a compiled region, the results of the pass inside the region.
        lacks_shadow: whether the graph needs a shadow, but there is none.
        is_partial: whether the shadow ends at a compiled region, in which `ignoring` could not follow the masks.
    """

    roots: set[Edge | None] = field(default_factory=set)
    carried: dict[Any, Carried] = field(default_factory=dict)
    born: dict[Any, Born] = field(default_factory=dict)
    reached: list[Reached] = field(default_factory=list)
    inside: dict[Birth, Inside] = field(default_factory=dict)
    lacks_shadow: bool = False
    is_partial: bool = False


class Elements:
    """The elements of each birth. `Events` has the same elements by node.

    Attributes:
        carried: by birth, the edges at which nodes carry its elements.
        born: by birth in backward, the nodes at which it happened.
    """

    def __init__(self, events: Events) -> None:
        self.carried: dict[Birth, list[tuple[Edge, Tensor]]] = {}
        for node, carried in events.carried.items():
            for output, pairs in carried.items():
                for birth, entries in pairs:
                    self.carried.setdefault(birth, []).append(((node, output), entries))
        self.born: dict[Birth, list[tuple[Any, Born]]] = {}
        for node, born in events.born.items():
            self.born.setdefault(born.birth, []).append((node, born))

    def is_made_by_hook(self, birth: Birth) -> bool:
        """Whether a hook made it in backward, and not a node. The user's hooks do not run in a shadow."""
        return birth.phase == "backward" and birth not in self.born


Senders = Mapping[Any, Sequence[Edge]]
"""By node, the nodes that send it gradients, each with the number of the cotangent."""


class Shadow(Observer):
    """The outcome of a backward pass by `ignoring` that changes no gradient.

    Attributes:
        finite: by node, whether the gradients that `ignoring` passes on there are finite.
        masks: the masks at the requested edges.
        made: the results of nodes that are not finite, although all known gradients that arrived were: the node, the
            number of the result, and those bad elements that the loss uses.
        edges, leaves: whether gradients are finite: by edge, or by the identity of a leaf.
        zeros: the edges, or the identities of leaves, whose gradients are 0.
        is_complete: whether `ignoring` could follow each operator.
    """

    def __init__(self, graph: Graph) -> None:
        self.finite: dict[Any, bool] = {}
        self.made: list[tuple[Any, int, Tensor]] = []
        self.is_complete = True
        self._graph = graph
        self._senders: dict[Any, list[Edge]] = {}
        self.masks: dict[Edge, Tensor | None] = {}
        self.edges: dict[Edge, bool] = {}
        self.leaves: dict[int, bool] = {}
        self.zeros: set[Edge | int] = set()

    def fixed(self, target: Any, edge: Edge) -> bool:
        """Whether `ignoring` gave a finite gradient to a leaf, or to a tensor whose gradient was requested."""
        return self.edges.get(edge, self.leaves.get(id(target), False))

    def let_go(self) -> None:
        """Forget the graph, because the next pass frees it."""
        self._graph, self._senders = {}, {}

    def not_followed(self) -> None:
        """Remember that the pass could not follow an operator."""
        self.is_complete = False

    def handed_on(self, node: Any, values: Sequence[Any], masks: Sequence[Tensor | None]) -> None:
        """Remember whether all gradients that a node passes on are finite."""
        self.finite[node] = are_finite(values)
        if self.finite[node]:
            return
        if not self._senders:
            self._senders = senders_of(self._graph)
        if all(self.finite.get(sender, True) for sender, _ in self._senders.get(node, ())):
            for at, (value, mask) in enumerate(zip(values, masks, strict=False)):
                bad = bad_of(value)
                if bad is not None:
                    self.made.append((node, at, bad & mask if mask is not None and mask.shape == bad.shape else bad))


class Diagnosis(NamedTuple):
    """A birth that reached something.

    Attributes:
        birth: the birth.
        verdict: the verdict on its kind.
        targets: the tensors that it reached, or their names.
        path: the functions on the longest path to the targets.
        is_implied: whether an origin in the loss implies it, so that the report leaves it out.
        tie: how PyTorch treats it, if it is at a tie.
        is_hidden: whether it appears only after the contaminated origins are fixed.
        has_others: whether gradients are still not finite because of other origins, which the loss uses.
        begun: the place in the user's code that began the pass that found it.
        in_transform: whether this pass belongs to a transform of `torch.func`.
        is_recorded: whether this pass records a graph, so that the gradient may be differentiated again.
    """

    birth: Birth
    verdict: Verdict
    targets: Sequence[Tensor | str]
    path: Sequence[str]
    is_implied: bool = False
    tie: str = ""
    is_hidden: bool = False
    has_others: bool = False
    begun: Place | None = None
    in_transform: bool = False
    is_recorded: bool = False


def diagnose(
    events: Events, shadow: Shadow | None, known: Mapping[Birth, Verdict], senders: Senders = MappingProxyType({})
) -> list[Diagnosis]:
    """The births that reached the loss or a gradient in a backward pass, in order of time.

    `known` has the verdicts of earlier passes, which still hold. `senders` is needed to find ties.
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
        tie = _tie(birth, verdict, events, elements, senders)
        found.append(Diagnosis(birth, verdict, [reached.target for reached in ends], path, is_implied, tie))
    return found


def with_hidden(
    found: list[Diagnosis], events: Events, shadow: Shadow | None, hidden: Sequence[Birth]
) -> list[Diagnosis]:
    """The diagnoses, and the hidden ones if gradients are not finite even after the contaminated origins are fixed.

    A hidden birth happened only in the shadow, because another NaN arrived first in the pass itself.
    """
    is_fixed = Verdict("contaminated", False) not in [each.verdict for each in found]
    if shadow is None or not shadow.is_complete or is_fixed:
        return found
    places = {_where(birth) for birth, *_ in found}
    targets = [each.target for each in events.reached if each.edge and not shadow.fixed(each.target, each.edge)]
    behind = [
        Diagnosis(birth, Verdict(birth.kind_if_used, False), targets, (birth.operator,), is_hidden=True)
        for birth in hidden
        if targets and _where(birth) not in places
    ]
    every = [*found, *behind]
    has_others = any(each.verdict.kind != "contaminated" for each in every)
    return [each._replace(has_others=has_others) for each in every]


def _where(birth: Birth) -> tuple[str, str, int]:
    return birth.operator, birth.place.filename, birth.place.line


def diagnose_results(provenances: Iterable[Provenance]) -> list[Diagnosis]:
    """The births that reached a result of a block in which no backward pass ran, in order of time."""
    paths: dict[Birth, tuple[str, ...]] = {}
    for provenance in provenances:
        for birth, path in provenance.paths.items():
            if birth.nature != "meant":
                paths.setdefault(birth, path)
    found = sorted(paths.items(), key=lambda pair: pair[0].number)
    return [Diagnosis(birth, Verdict(birth.kind_if_used), [RESULT], path) for birth, path in found]


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
        kind, _, is_sure, _ = inside.verdict
        return Verdict(kind, fixed, is_sure and not events.lacks_shadow)
    is_sure = not events.lacks_shadow and (in_loss or not events.is_partial)
    if used is False or (fixed and not in_loss and not elements.is_made_by_hook(birth)):
        is_zero = shadow is not None and all(
            edge in shadow.zeros or id(target) in shadow.zeros for target, edge in leaves
        )
        return Verdict("contaminated", fixed, is_zero=bool(fixed) and is_zero)
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


# Ties: whether the loss uses or ignores an element by a convention alone.


def _tie(birth: Birth, verdict: Verdict, events: Events, elements: Elements, senders: Senders) -> str:
    """How PyTorch treats what was born, if it is at a tie, and if the kind of the origin depends on it."""
    if verdict.kind not in ("contaminated", "undefined"):
        return ""
    if birth in events.inside:
        return events.inside[birth].tie
    is_used = verdict.kind == "undefined"
    ties = (_tie_at(node, born.value, is_used, senders) for node, born in elements.born.get(birth, ()))
    return next(filter(None, ties), "")


def _tie_at(node: Any, value: float | None, is_used: bool, senders: Senders) -> str:
    """How PyTorch treats an element that a node's function gave, in half a sentence, if it is at a tie; else empty."""
    if value is None or not math.isfinite(value):
        return ""
    waiting, seen = [node], {node}
    while waiting:
        for consumer, _ in senders.get(waiting.pop(0), ()):
            if consumer in seen:
                continue
            seen.add(consumer)
            found = _convention(consumer, value, is_used)
            if found:
                return found
            known = numerics_of_node(consumer)
            if known.moves or value == 0 and known.keeps_zero:
                waiting.append(consumer)
    return ""


def _convention(node: Any, value: float, is_used: bool) -> str:
    _, _, number = node.name().partition("Backward")
    known = numerics_of_node(node)
    called = node.metadata.get(CALLED)
    name = called[0].strip("_") if called is not None else known.name
    kinks = known.kinks(node) if known.kinks is not None and known.uses_kinks == is_used else ()
    if any(kink is not None and float(kink) == value for kink in kinks):
        if is_used:
            return f"at a tie: by PyTorch's convention {name} uses the element, and relu does not"
        return f"at a tie: by PyTorch's convention {name} does not use the element, and maximum does"
    of_equals = known.of_equals.get(number) or known.of_equals.get("")
    if of_equals == "one":
        return f"perhaps at a tie: of equal elements, {name} takes one by PyTorch's convention"
    if is_used and of_equals == "all":
        return f"perhaps at a tie: of equal elements, {name} uses all by PyTorch's convention"
    return ""
