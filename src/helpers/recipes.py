"""Computations whose gradient is NaN, and the code that people write against it, for *Every remedy for a NaN gradient*.

Each row of `data/recipes.toml` is a few lines of PyTorch. `helpers.remedies` runs the lines and judges the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .data import load

REWRITES = ("select first", "double where", "substitute", "multiply", "epsilon", "masked")
"""The remedies that rewrite the forward code."""


@dataclass(frozen=True)
class Situation:
    """A computation whose gradient is not finite, as plain PyTorch, and rewritten by each remedy of `REWRITES`.

    All code uses `torch`, `F`, `inf` and `nan`, computes `y` and then `loss`, and leaves the gradient in `x.grad`.

    Args:
        name: the name that a reader gives it.
        page: the page of the book about it, with an anchor.
        given: lines that prepare `x`, whose value is in `Situation.x`, and the data. `torch.where` conditions have
            names here.
        x: the value of the leaf whose gradient is wanted.
        y: the dangerous expression.
        loss: the loss, an expression of `y`.
        alone: an expression for the terms of the loss that uses the used elements alone. They are added up. By default,
            it is `y`.
        select: `y` of the used elements alone, for *select first*.
        safe: `y` with a harmless number in place of the dangerous one, for *double where* and *substitute*.
        substitute: `y` for *substitute*, if people write another one.
        masked: `y` with `torch.masked`.
        epsilon: `y` with a small number or a bound; empty if this remedy has no place here.
        losses: the loss by each remedy whose loss is not the usual one: see `rewritten`.
        used: an expression for the mask of the used elements of `x`, if some are not used. `alone` then sees `x[used]`.
        ignores: whether the loss ignores the dangerous element. Otherwise the gradient is undefined.
        data: the name of the module's input, if `x` is a parameter of the module and not its input.

    If an expression for `y` needs more lines, it has all of them, and the last begins with `y =`.
    """

    name: str
    page: str
    given: str
    x: object
    y: str
    loss: str
    select: str
    safe: str
    masked: str
    alone: str = ""
    epsilon: str = ""
    substitute: str = ""
    losses: Mapping[str, str] = field(default_factory=dict)
    used: str = ""
    ignores: bool = True
    data: str = ""

    @property
    def plain(self) -> str:
        """The forward code of plain PyTorch."""
        return _code(self.y, self.loss)

    @property
    def terms(self) -> str:
        """The terms of the loss that use the used elements alone."""
        return self.alone or self.y

    def rewritten(self, remedy: str) -> str | None:
        """The forward code by a remedy of `REWRITES`; None if the remedy has no place here."""
        usual = {
            "select first": (self.select, "y.sum()"),
            "double where": (self.safe, "torch.where(ok, y, 0).sum()"),
            "substitute": (self.substitute or self.safe, "y.sum()"),
            "multiply": (self.y, "(y * ok).sum()"),
            "epsilon": (self.epsilon, self.loss),
            "masked": (self.masked, "y.sum()"),
        }
        y, loss = usual[remedy]
        return _code(y, self.losses.get(remedy, loss)) if y else None


def _code(y: str, loss: str) -> str:
    return f"{y if 'y = ' in y else f'y = {y}'}\nloss = {loss}"


def _rows(kind: str, ignored: Sequence[Situation] = (), **usual: Any) -> tuple[Situation, ...]:
    """The rows of a kind. A row can be like one before it, or like one of `ignored`. `usual` are its usual fields."""
    known = {each.name: each for each in ignored}
    found = []
    for row in load("recipes")[kind]:
        fields = {**usual, **row}
        like = fields.pop("like", None)
        found.append(replace(known[like], **fields) if like else Situation(**fields))
        known.setdefault(found[-1].name, found[-1])
    return tuple(found)


IGNORED = _rows("ignored")
"""The loss ignores the dangerous element. Its gradient is 0, and the gradient of all other elements exists."""

USED = _rows("used", IGNORED, loss="y.sum()", alone="", losses={}, used="", ignores=False)
"""The loss uses the dangerous element. The gradient of that element is undefined."""
