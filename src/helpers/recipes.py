"""Computations whose gradient is NaN, and the code that people write against it, for *Every remedy for a NaN gradient*.

Each row is a few lines of PyTorch. `helpers.remedies` runs the lines and judges the results. No result is written in
this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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


def _used(ignored: Situation, losses: Mapping[str, str] | None = None) -> Situation:
    """The same computation with a loss that uses the dangerous element."""
    return replace(ignored, loss="y.sum()", alone="", losses=losses or {}, used="", ignores=False)


_GAP = "a = torch.tensor([1.0, 2.0, nan])\nok = ~a.isnan()"
_ROWS = "ok = torch.tensor([[False], [True]])"
_FIRST_ROW_DROPPED = {"double where": "y[1:].sum()", "multiply": "(y * ok[:, 0]).sum()"}
_MEAN = {"double where": "torch.where(ok, y, 0).sum() / ok.sum()", "multiply": "(y * ok).sum() / ok.sum()"}
_MEAN |= dict.fromkeys(("select first", "substitute", "masked"), "y.mean()")

NANSUM = Situation(
    "nansum",
    "nansum-nanmean",
    _GAP,
    1.0,
    y="x * a",
    loss="y.nansum()",
    alone="(x * a[ok]).sum()",
    select="x * a[ok]",
    safe="x * torch.where(ok, a, 0)",
    masked="as_masked_tensor(x.expand(3), ok) * masked_tensor(a, ok)",
    data="a",
)
SQRT = Situation(
    "sqrt of 0",
    "undefined",
    "ok = x > 0",
    [0.0, 4.0],
    y="x.sqrt()",
    loss="torch.where(ok, y, 0).sum()",
    select="x[ok].sqrt()",
    safe="torch.where(ok, x, 1).sqrt()",
    masked="as_masked_tensor(x, ok).sqrt()",
    epsilon="(x + 1e-8).sqrt()",
    used="x > 0",
)
NORM = Situation(
    "norm of 0, by hand",
    "undefined#distance-of-equal-points-norm-of-zero",
    _ROWS,
    [[0.0, 0.0], [3.0, 4.0]],
    y="x.square().sum(-1).sqrt()",
    loss="y[1:].sum()",
    select="x[1:].square().sum(-1).sqrt()",
    safe="torch.where(ok, x, 1).square().sum(-1).sqrt()",
    masked="as_masked_tensor(x, ok.expand(2, 2)).square().sum(-1).sqrt()",
    epsilon="(x.square().sum(-1) + 1e-8).sqrt()",
    losses=_FIRST_ROW_DROPPED,
    used="torch.tensor([False, True])",
)
STD = Situation(
    "std of equal numbers, by hand",
    "undefined#std-of-one-element",
    _ROWS,
    [[3.0, 3.0], [1.0, 2.0]],
    y="x.var(-1).sqrt()",
    loss="y[1:].sum()",
    select="x[1:].var(-1).sqrt()",
    safe="torch.where(ok, x, torch.arange(2.0)).var(-1).sqrt()",
    masked="as_masked_tensor(x, ok.expand(2, 2)).var(-1).sqrt()",
    epsilon="(x.var(-1) + 1e-8).sqrt()",
    losses=_FIRST_ROW_DROPPED,
    used="torch.tensor([False, True])",
)
ACOS = Situation(
    "acos of 1",
    "undefined#acos-at-1-the-angle-between-equal-vectors",
    "ok = x < 1",
    [1.0, 0.5],
    y="x.acos()",
    loss="torch.where(ok, y, 0).sum()",
    select="x[ok].acos()",
    safe="torch.where(ok, x, 0).acos()",
    masked="as_masked_tensor(x, ok).acos()",
    epsilon="x.clamp(-1 + 1e-7, 1 - 1e-7).acos()",
    used="x < 1",
)
LOG = Situation(
    "log of 0",
    "atlas#point-log-0",
    "ok = x > 0",
    [0.0, 0.5],
    y="x.log()",
    loss="torch.where(ok, y, 0).sum()",
    select="x[ok].log()",
    safe="torch.where(ok, x, 1).log()",
    masked="as_masked_tensor(x, ok).log()",
    epsilon="(x + 1e-8).log()",
    used="x > 0",
)
ATAN2 = Situation(
    "atan2 at the origin",
    "atlas#point-atan2-0-0",
    _ROWS,
    [[0.0, 0.0], [3.0, 4.0]],
    y="torch.atan2(x[:, 0], x[:, 1])",
    loss="y[1:].sum()",
    select="torch.atan2(x[1:, 0], x[1:, 1])",
    safe="z = torch.where(ok, x, 1)\ny = torch.atan2(z[:, 0], z[:, 1])",
    masked="z = as_masked_tensor(x, ok.expand(2, 2))\ny = torch.atan2(z[:, 0], z[:, 1])",
    epsilon="torch.atan2(x[:, 0], x[:, 1] + 1e-8)",
    losses=_FIRST_ROW_DROPPED,
    used="torch.tensor([False, True])",
)
SOFTMAX = Situation(
    "a fully masked softmax row",
    "attention#what-to-do",
    """\
scores = torch.tensor([[0.0, 1.0], [3.0, 4.0]])
keep = torch.tensor([[True, True], [False, False]])
row = keep.any(-1, keepdim=True)""",
    [[1.0], [2.0]],
    y="scores.masked_fill(~keep, -inf).softmax(-1) @ x",
    loss="y[:1].sum()",
    alone="(scores[:1].softmax(-1) @ x).sum()",
    select="scores[:1].masked_fill(~keep[:1], -inf).softmax(-1) @ x",
    safe="scores.masked_fill(~keep & row, -inf).softmax(-1) @ x",
    masked="masked_tensor(scores, keep).softmax(-1) @ x",
    epsilon="scores.masked_fill(~keep, -1e9).softmax(-1) @ x",
    losses={"double where": "torch.where(row, y, 0).sum()", "multiply": "(y * row).sum()", "masked": "y[:1].sum()"},
)
TARGET = Situation(
    "a missing target",
    "a-run-that-dies-at-step-7",
    """\
a = torch.tensor([1.0, 2.0, 3.0])
target = torch.tensor([2.0, nan, 1.0])
ok = ~target.isnan()""",
    1.0,
    y="(x * a - target).square()",
    loss="y[ok].mean()",
    alone="(x * a[ok] - target[ok]).square().mean()",
    select="(x * a[ok] - target[ok]).square()",
    safe="(x * a - torch.where(ok, target, 0)).square()",
    masked="(as_masked_tensor(x * a, ok) - masked_tensor(target, ok)).square()",
    losses={**_MEAN, "double where": "y[ok].mean()"},
    data="a",
)
DIVISION = Situation(
    "x / 0 under a mask",
    "division-under-a-mask",
    "div = torch.tensor([0.0, 1.0])\nok = div != 0",
    [1.0, 1.0],
    y="x / div",
    loss="y[ok].sum()",
    alone="(x / div[ok]).sum()",
    select="x[ok] / div[ok]",
    safe="x / torch.where(ok, div, 1)",
    masked="x / div",
    epsilon="x / (div + 1e-8)",
    losses={"masked": "as_masked_tensor(y, ok).sum()"},
    used="torch.tensor([False, True])",
)

IGNORED = (
    Situation(
        "where over exp",
        "where-over-exp",
        "ok = x < 0",
        [-1.0, 100.0],
        y="x.exp()",
        loss="torch.where(ok, y, 1).sum()",
        select="x[ok].exp()",
        safe="torch.where(ok, x, 0).exp()",
        masked="as_masked_tensor(x, ok).exp()",
        losses={
            "select first": "y.sum() + (~ok).sum()",
            "double where": "torch.where(ok, y, 1).sum()",
            "multiply": "(y * ok + ~ok).sum()",
            "masked": "torch.where(ok, y, torch.ones_like(x)).sum()",
        },
        used="x < 0",
    ),
    Situation(
        "where over a division",
        "where-over-division",
        "ok = x != 0",
        [0.0, 2.0],
        y="1 / x",
        loss="torch.where(ok, y, 0).sum()",
        select="1 / x[ok]",
        safe="1 / torch.where(ok, x, 1)",
        masked="as_masked_tensor(x, ok).reciprocal()",
        epsilon="1 / (x + 1e-8)",
        used="x != 0",
    ),
    NANSUM,
    replace(NANSUM, name="nanmean", loss="y.nanmean()", alone="(x * a[ok]).mean()", losses=_MEAN),
    DIVISION,
    replace(
        DIVISION,
        name="one number, two divisors",
        page="division-under-a-mask#what-a-hook-can-do-and-what-it-can-t",
        x=1.0,
        select="x / div[ok]",
        used="",
        data="div",
    ),
    Situation(
        "rows sliced away after a Linear",
        "slicing-nan",
        "rows = torch.tensor([[1.0, 2.0], [nan, 5.0]])\nok = torch.tensor([[True], [False]])",
        [[0.5, -0.5]],
        y="F.linear(rows, x)",
        loss="y[:1].sum()",
        alone="F.linear(rows[:1], x).sum()",
        select="F.linear(rows[:1], x)",
        safe="F.linear(torch.where(ok, rows, 0), x)",
        substitute="F.linear(rows.nan_to_num(), x)",
        masked="F.linear(masked_tensor(rows, ok.expand(2, 2)), x)",
        data="rows",
    ),
    TARGET,
    SQRT,
    NORM,
    STD,
    ACOS,
    LOG,
    Situation(
        "0 · log 0",
        "atlas#point-p-log-p-at-0",
        "ok = x > 0",
        [0.0, 0.5],
        y="x * x.log()",
        loss="y.nansum()",
        select="x[ok] * x[ok].log()",
        safe="x * torch.where(ok, x, 1).log()",
        masked="as_masked_tensor(x, ok)",
        epsilon="x * (x + 1e-8).log()",
        losses={"masked": "(y * y.log()).sum()"},
        used="x > 0",
    ),
    ATAN2,
    SOFTMAX,
    Situation(
        "cumsum, the NaN dropped after it",
        "what-counts-as-ignored#by-position",
        _GAP,
        1.0,
        y="(x * a).cumsum(0)",
        loss="y[:2].sum()",
        alone="(x * a[:2]).cumsum(0).sum()",
        select="(x * a[:2]).cumsum(0)",
        safe="(x * torch.where(ok, a, 0)).cumsum(0)",
        masked="z = as_masked_tensor(x.expand(3), ok) * masked_tensor(a, ok)\ny = z.cumsum(0)",
        losses={"double where": "y[:2].sum()"},
        data="a",
    ),
    Situation(
        "max pooling, one window dropped",
        "what-counts-as-ignored#by-value-the-largest-the-sorted-the-finite",
        "a = torch.tensor([1.0, 2.0, nan, 4.0])\nok = ~a.isnan()",
        1.0,
        y="F.max_pool1d((x * a)[None], 2)[0]",
        loss="y[:1].sum()",
        alone="F.max_pool1d((x * a[:2])[None], 2).sum()",
        select="F.max_pool1d((x * a[:2])[None], 2)[0]",
        safe="F.max_pool1d((x * torch.where(ok, a, 0))[None], 2)[0]",
        masked=("z = as_masked_tensor(x.expand(4), ok) * masked_tensor(a, ok)\ny = F.max_pool1d(z[None], 2)[0]"),
        losses={
            "double where": "y[:1].sum()",
            "multiply": "(y * torch.tensor([1.0, 0.0])).sum()",
            "masked": "y[:1].sum()",
        },
        data="a",
    ),
    replace(
        NANSUM,
        name="an infinite input, clamped later",
        page="what-counts-as-ignored#by-value-bounds",
        given="a = torch.tensor([1.0, inf])\nok = a.isfinite()",
        loss="y.clamp(max=3).sum()",
        masked="as_masked_tensor(x.expand(2), ok) * masked_tensor(a, ok)",
        losses={
            "select first": "y.clamp(max=3).sum() + 3 * (~ok).sum()",
            "double where": "torch.where(ok, y.clamp(max=3), 3).sum()",
            "substitute": "y.clamp(max=3).sum()",
            "multiply": "(y.clamp(max=3) * ok + 3 * ~ok).sum()",
            "masked": "y.clamp(max=3).sum() + 3",
        },
    ),
)
"""The loss ignores the dangerous element. Its gradient is 0, and the gradient of all other elements exists."""

_FIRST_ROW_USED = {"double where": "torch.where(ok[:, 0], y, 0).sum()", "multiply": "(y * ok[:, 0]).sum()"}

USED = (
    _used(SQRT),
    _used(NORM, _FIRST_ROW_USED),
    _used(STD, _FIRST_ROW_USED),
    _used(ACOS),
    _used(LOG),
    Situation(
        "xlogy(0, 0)",
        "atlas#point-xlogy-0-0",
        "ok = x > 0",
        [0.0, 0.5],
        y="torch.xlogy(x, x)",
        loss="y.sum()",
        select="torch.xlogy(x[ok], x[ok])",
        safe="torch.xlogy(x, torch.where(ok, x, 1))",
        masked="z = as_masked_tensor(x, ok)\ny = torch.xlogy(z, z)",
        epsilon="torch.xlogy(x, x + 1e-8)",
        ignores=False,
    ),
    _used(ATAN2, _FIRST_ROW_USED),
    _used(SOFTMAX, {"double where": "torch.where(row, y, 0).sum()", "multiply": "(y * row).sum()"}),
    replace(TARGET, loss="y.mean()", alone="(x * a - target).square().mean()", losses=_MEAN, ignores=False),
    replace(
        DIVISION,
        name="infinity times a computed 0",
        page="division-under-a-mask#what-a-hook-can-do-and-what-it-can-t",
        given="div = torch.tensor([0.0, 1.0])\nweight = torch.tensor([2.0 - 6.0 / 3.0, 1.0])\nok = div != 0",
        loss="(weight * y).sum()",
        alone="weight * (x / div)",
        losses={
            "select first": "(weight[ok] * y).sum()",
            "double where": "(weight * torch.where(ok, y, 0)).sum()",
            "substitute": "(weight * y).sum()",
            "multiply": "(weight * y * ok).sum()",
            "masked": "(masked_tensor(weight, ok) * as_masked_tensor(y, ok)).sum()",
        },
        used="",
        ignores=False,
    ),
)
"""The loss uses the dangerous element. The gradient of that element is undefined."""
