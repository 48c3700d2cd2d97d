"""The mechanism drawn: the graph of a computation, with the cotangents that flow back through it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import show
from .backward_graph import WAYS, Step, record
from .entries import describe, outcome


@dataclass(frozen=True, eq=False)
class BackwardFigure:
    """A recorded backward pass with its caption."""

    steps: Sequence[Step]
    caption: str

    def text(self) -> str:
        return "\n".join([self.caption, *("  ".join(row) for row in self._rows(describe))])

    def html(self) -> str:
        head = ["Step", "Saved", *(f"Passes on, {way}" for way in WAYS)]
        rows = [[html.escape(cell) for cell in row] for row in self._rows(lambda value: describe(value, 3))]
        return show.table(html.escape(self.caption), head, rows)

    def json(self) -> dict[str, Any] | None:
        return None

    def _rows(self, texts: Any) -> list[list[str]]:
        return [
            [
                f"{number}. {step.name or step.function}",
                ", ".join(f"{name} = {texts(outcome(value))}" for name, value in step.saved.items()),
                *(
                    ", ".join(texts(outcome(sent.value[way])) for sent in step.sends)
                    or ", ".join(texts(outcome(by_way[way])) for by_way in step.arrives.values())
                    for way in WAYS
                ),
            ]
            for number, step in enumerate(self.steps, 1)
        ]


def backward_figure(
    loss: Tensor, inputs: Mapping[str, Tensor], *, caption: str = "", gradient: Tensor | None = None
) -> None:
    """Draw the graph of a computation, and the cotangents that flow back through it, step by step.

    Both passes are run, vanilla and ignoring, and what every node gets, saved and passes on is shown entry by entry.
    The graph, its tensors and their `.grad` stay as they are, so the figure can stand before the call of backward.

    Args:
        loss: what to differentiate, of any shape.
        inputs: the tensors that the gradient goes to, by the names that the reader knows: leaves, or intermediate
            results. What does not lead to them is not drawn.
        caption: the sentence above the steps.
        gradient: the cotangent to start from, in the shape of the loss; may be left out when that has one entry.

    Raises:
        ValueError: when the loss has no graph or does not depend on an input, when there are no inputs, when the
            gradient is missing or of another shape, and when the graph has too many nodes to be read.
        RuntimeError: when the graph was freed.
    """
    show.show(BackwardFigure(record(loss, inputs, gradient), caption))
