"""The figure of a backward pass: the graph of a computation, and the cotangents that flow through it, step by step."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .. import show
from ..entries import Entries, Kind, Outcome, describe, nested, outcome
from ..nodes import node
from .drawing import draw
from .graph import METHODS, FigureStep, Sent, merged, record
from .told import Told, short, tell

LONGEST = 12
"""The most elements of a tensor that is not shortened."""


@dataclass(frozen=True, eq=False)
class BackwardFigure(show.Shown):
    """A recorded backward pass with its caption."""

    steps: Sequence[FigureStep]
    caption: str
    plays: bool = False

    @cached_property
    def told(self) -> Sequence[Told]:
        return tell(self.steps)

    @property
    def first(self) -> int:
        """The number of the step to show first: the step in which NaN first appears, or the last step."""
        born = (number for number, told in enumerate(self.told) if "NaN is born" in told.said["vanilla"])
        return next(born, len(self.steps) - 1)

    def alt(self) -> str:
        """The description for readers who can't see the drawing. The steps next to the drawing are text."""
        lines = [
            f"{told.title} passes on to {' and '.join(self.told[sent.to].title for sent in step.sends)}"
            for step, told in zip(self.steps, self.told, strict=True)
            if step.sends
        ]
        said = self.told[self.first].said["vanilla"]
        return f"Graph of the backward pass: from the loss to {'; '.join([self.told[0].title, *lines])}. {said}".strip()

    def text(self) -> str:
        lines = [self.caption] if self.caption else []
        for number, (step, told) in enumerate(zip(self.steps, self.told, strict=True), 1):
            formulas = "; ".join(self._formulas(step, told))
            lines.append(f"{number}. {told.title}{f': {formulas}' if formulas else ''}")
            for label, method, value in self._rows(step, told):
                shown = nested(short(value), value.shape, LONGEST) if isinstance(value, Entries) else describe(value)
                lines.append(f"   {f'{label}, {method}' if method else label}: {shown}")
            lines += [f"   {method}: {told.said[method]}" for method in METHODS if told.said[method]]
        return "\n".join(lines)

    def html(self) -> str:
        salt = "b" + hashlib.sha256(self.text().encode()).hexdigest()[:8]
        alt = html.escape(self.alt(), quote=True)
        svg = draw(self.steps, self.told, salt)
        steps = "".join(self._step(number) for number in range(len(self.steps)))
        caption = f"<figcaption>{html.escape(self.caption)}{self._key()}</figcaption>"
        return (
            f'<figure class="zn-backward" data-backward="{self.first}"{" data-plays" if self.plays else ""}>'
            f'<div class="zn-graph" role="img" aria-label="{alt}">{svg}</div>'
            f'<div class="zn-steps">{steps}</div>{caption}</figure>'
        )

    def _key(self) -> str:
        """The meaning of the marks in the drawing. The marks of the steps are shown only if a script runs."""
        sent = (value for step in self.steps for each in step.sends for value in each.value.values())
        masked = any(isinstance(value, Entries) and Kind.MASKED in value.kinds() for value in sent)
        return (
            '<span class="zn-key">Each grey box is a node: one step of backward, with the tensors that it saved. '
            "The cells between the boxes are cotangents: the gradients that arrive at the next box."
            f"{' A dashed cell (--) marks an ignored element.' if masked else ''}"
            '<span class="zn-key-steps"> ▶ marks the current step. Later steps are faint.</span></span>'
        )

    def _rows(self, step: FigureStep, told: Told) -> Iterator[tuple[str, str, Outcome]]:
        """What arrives, what the node saved, and what it passes on: a label, a method or the empty text, a tensor."""
        found: list[tuple[str, Mapping[str, Outcome]]] = []
        for output, value in step.arrives.items():
            arrives = "arrives" if len(step.arrives) == 1 else f"arrives at output {output}"
            found.append((told.title if step.leaf else arrives, merged(value)))
        found += [(name, {"": outcome(value)}) for name, value in {**told.tensors, **told.numbers}.items()]
        found += [(self._target(step, sent), merged(sent.value)) for sent in step.sends]
        return ((label, method, each) for label, value in found for method, each in value.items())

    def _target(self, step: FigureStep, sent: Sent) -> str:
        """The destination of a cotangent. If two cotangents go to the same node, it also names the argument."""
        to = self.told[sent.to].title if self.steps[sent.to].leaf else self.steps[sent.to].function
        arguments = node(step.node).inputs
        twice = [other.to for other in step.sends].count(sent.to) > 1 and sent.slot < len(arguments)
        return f"to {to}, of {arguments[sent.slot]}" if twice else f"to {to}"

    def _formulas(self, step: FigureStep, told: Told) -> list[str]:
        """The formula of the node in one line, or one line for each input."""
        if told.formula:
            return [told.formula]
        known = [sent for sent in step.sends if sent.slot in told.formulas]
        return [f"{told.formulas[sent.slot]} {self._target(step, sent)}" for sent in known]

    def _step(self, number: int) -> str:
        step, told = self.steps[number], self.told[number]
        body = "".join(_row(*row) for row in self._rows(step, told))
        name = "" if step.leaf else f"<code>{html.escape(step.node)}</code>"
        lines = self._formulas(step, told)
        words = "".join(f'<p class="zn-formula">passes on <b>{html.escape(line)}</b></p>' for line in lines)
        source = "".join(f"<code>{html.escape(line)}</code>" for line in told.official)
        official = f'<p class="zn-official">In PyTorch’s derivatives.yaml: {source}</p>' if source else ""
        said = "".join(
            f'<p class="zn-said" data-method="{method}"><b>{method}:</b> {html.escape(told.said[method])}</p>'
            for method in METHODS
            if told.said[method]
        )
        plain = f"It passes on {'; '.join(lines)}." if lines else ""
        facts = "".join(f' data-{method}="{html.escape(told.said[method] or plain, quote=True)}"' for method in METHODS)
        title = html.escape(told.title, quote=True)
        return (
            f'<section class="zn-step" data-step="{number}" data-title="{title}"{facts}>'
            f'<p><b class="zn-name">{number + 1}. {title}</b> {name}</p>{words}'
            f'<table aria-label="{number + 1}. {title}"><tbody>{body}</tbody></table>{said}{official}</section>'
        )


def _row(label: str, method: str, value: Outcome) -> str:
    shown = f'<span class="zn-method">, {method}</span>' if method else ""
    line = show.result(value)
    if isinstance(value, Entries):
        entries = (show.entry(text, kind) for text, kind in zip(short(value), value.kinds(), strict=True))
        line = nested([*entries], value.shape, LONGEST)
    at = f' data-method="{method}"' if method else ""
    return (
        f'<tr{at}><th scope="row">{html.escape(label)}{shown}</th><td><span class="zn-entries">{line}</span></td></tr>'
    )


def backward_figure(
    loss: Tensor,
    inputs: Mapping[str, Tensor],
    *,
    caption: str = "",
    gradient: Tensor | None = None,
    plays: bool = False,
) -> None:
    """Draw the graph of a computation, and the cotangents that flow back through it, step by step.

    The figure runs two backward passes, one with plain PyTorch (vanilla) and one with `ignoring`. For every node it
    shows, element by element, the cotangent that arrives, the tensors that the node saved, and the cotangents that it
    passes on. If an element becomes NaN, the figure shows the arithmetic. It recomputes this arithmetic, and shows it
    only if the result has the same bits as in the pass. The figure keeps the graph and does not write the `.grad` of
    the inputs, so you can draw it before you call backward. Hooks on tensors run, as in `torch.autograd.grad`.

    Args:
        loss: what to differentiate, of any shape.
        inputs: the tensors that the gradient goes to, by the names that readers know: leaves or intermediate results,
            of any shape. Nodes that do not lead to one of them are not drawn.
        caption: the sentence under the figure.
        gradient: the cotangent to start from, in the shape of the loss. You may leave it out if the loss has one
            element.
        plays: whether the site plays all steps, once, as soon as a reader sees the figure.

    Raises:
        ValueError: if the loss does not depend on an input, if the gradient is missing, or if the graph has more than
            40 nodes.
        RuntimeError: PyTorch's own, if the graph was freed, or if the loss or an input has no graph.

    >>> import torch
    >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
    >>> backward_figure(torch.where(x < 50, x.exp(), 0).sum(), {"x": x})
    1. sum: grad, for every element
       arrives: 1
       to where: [1, 1]
    2. where: grad if condition else 0
       arrives: [1, 1]
       condition: [True, False]
       to exp, vanilla: [1, 0]
       to exp, ignoring: [1, --]
       ignoring: From here on the loss ignores 1 of 2 elements (--).
    3. exp: grad × result
       arrives, vanilla: [1, 0]
       arrives, ignoring: [1, --]
       result: [2.72, inf]
       to x.grad, vanilla: [2.72, NaN]
       to x.grad, ignoring: [2.72, --]
       vanilla: NaN is born: 0 × inf = NaN at [1].
       ignoring: Ignored: -- × inf = -- at [1].
    4. x.grad
       x.grad, vanilla: [2.72, NaN]
       x.grad, ignoring: [2.72, --]
       vanilla: NaN in 1 of 2 elements.
       ignoring: Ignored elements are written as 0. No NaN.
    """
    show.show(BackwardFigure(record(loss, inputs, gradient), caption, plays))
