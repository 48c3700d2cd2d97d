"""What happens in a backward pass to numbers that are not finite. `diagnosis` reads these events, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..functions.graph import Edge
from .nodes import Carried
from .provenance import Birth, Provenance
from .report import Kind


class Born(NamedTuple):
    """A birth at a node in backward.

    Attributes:
        birth: the birth.
        entries: its elements in the gradient that the node passes on.
        is_opaque: whether the node's derivative is somebody's own code.
        value: what the function gave in the forward pass at the first of the elements, if that is known.
    """

    birth: Birth
    entries: Tensor
    is_opaque: bool
    value: float | None = None


class Inside(NamedTuple):
    """What the pass inside of a compiled region found out about a birth there.

    Attributes:
        kind: the kind of the origin.
        is_sure: whether it is known if the loss uses the elements.
        fixed: whether `ignoring` gave finite gradients of the uncompiled code.
        tie: how PyTorch treats it, if it is at a tie.
    """

    kind: Kind
    is_sure: bool
    fixed: bool | None
    tie: str


class Reached(NamedTuple):
    """The end of a path: a leaf, a tensor that a gradient was asked for, or the loss, which has no edge."""

    target: Tensor | str
    edge: Edge | None
    provenance: Provenance


@dataclass
class Events:
    """The events of one backward pass, and of the passes inside of it.

    Attributes:
        roots: the edges at which the pass begins.
        carried: by node, the elements of its outputs that were not finite in the forward pass.
        born: by node, the birth there in backward.
        reached: what was reached, in order of time.
        inside: by birth in a compiled region, what the pass inside of the region found out.
        lacks_shadow: whether there is no shadow, though the graph needs one.
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
    """The elements of each birth. The events have them by node.

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
        """Whether no node made it in backward. The user's hooks do not run in a shadow, which knows nothing of it."""
        return birth.phase == "backward" and birth not in self.born
