"""Computations whose gradient is NaN, and the code that people write against it, for *Every remedy, compared*.

Each row is a few lines of PyTorch. `helpers.remedies` runs the lines and judges the results. No result is written in
this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Situation:
    """A computation whose gradient is not finite, as plain PyTorch, and rewritten by each remedy.

    All code uses `torch`, `F`, `inf` and `nan`, computes `loss`, and leaves the gradient in `x.grad`.

    Args:
        name: the name that a reader gives it.
        page: the page of the book about it, with an anchor.
        given: lines that prepare `x`, whose value is in `Situation.x`, and the data. `torch.where` conditions have
            names here.
        x: the value of the leaf whose gradient is wanted.
        plain: the forward code. A line that begins with `y =` makes the dangerous result.
        alone: an expression for the terms of the loss that uses the used elements alone. They are added up.
        used: an expression for the mask of the used elements of `x`, if some are not used. `alone` then sees `x[used]`.
        ignores: whether the loss ignores the dangerous element. Otherwise the gradient is undefined.
        data: the name of the module's input, if `x` is a parameter of the module and not its input.
        instead: the forward code by each remedy that rewrites it. A remedy that has no place here is left out.
    """

    name: str
    page: str
    given: str
    x: object
    plain: str
    alone: str
    instead: Mapping[str, str]
    used: str = ""
    ignores: bool = True
    data: str = ""


_ROWS = "ok = torch.tensor([[False], [True]])"
_SCORES = """\
scores = torch.tensor([[0.0, 1.0], [3.0, 4.0]])
keep = torch.tensor([[True, True], [False, False]])
row = keep.any(-1, keepdim=True)"""
_TARGETS = """\
a = torch.tensor([1.0, 2.0, 3.0])
target = torch.tensor([2.0, nan, 1.0])
ok = ~target.isnan()"""
_GAP = "a = torch.tensor([1.0, 2.0, nan])\nok = ~a.isnan()"

IGNORED = (
    Situation(
        "where over exp",
        "where-over-exp",
        "ok = x < 0",
        [-1.0, 100.0],
        "y = x.exp()\nloss = torch.where(ok, y, 1).sum()",
        "x.exp().sum()",
        {
            "select first": "loss = x[ok].exp().sum() + (~ok).sum()",
            "double where": "y = torch.where(ok, x, 0).exp()\nloss = torch.where(ok, y, 1).sum()",
            "substitute": "y = torch.where(ok, x, 0).exp()\nloss = y.sum()",
            "multiply": "y = x.exp()\nloss = (y * ok + ~ok).sum()",
            "masked": "y = as_masked_tensor(x, ok).exp()\nloss = torch.where(ok, y, torch.ones_like(x)).sum()",
        },
        used="x < 0",
    ),
    Situation(
        "where over a division",
        "where-over-division",
        "ok = x != 0",
        [0.0, 2.0],
        "y = 1 / x\nloss = torch.where(ok, y, 0).sum()",
        "(1 / x).sum()",
        {
            "select first": "loss = (1 / x[ok]).sum()",
            "double where": "y = 1 / torch.where(ok, x, 1)\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = 1 / torch.where(ok, x, 1)\nloss = y.sum()",
            "multiply": "y = 1 / x\nloss = (y * ok).sum()",
            "epsilon": "y = 1 / (x + 1e-8)\nloss = torch.where(ok, y, 0).sum()",
            "masked": "y = as_masked_tensor(x, ok).reciprocal()\nloss = y.sum()",
        },
        used="x != 0",
    ),
    Situation(
        "nansum",
        "nansum-nanmean",
        _GAP,
        1.0,
        "y = x * a\nloss = y.nansum()",
        "(x * a[ok]).sum()",
        {
            "select first": "y = x * a[ok]\nloss = y.sum()",
            "double where": "y = x * torch.where(ok, a, 0)\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = x * torch.where(ok, a, 0)\nloss = y.sum()",
            "multiply": "y = x * a\nloss = (y * ok).sum()",
            "masked": "y = as_masked_tensor(x.expand(3), ok) * masked_tensor(a, ok)\nloss = y.sum()",
        },
        data="a",
    ),
    Situation(
        "nanmean",
        "nansum-nanmean",
        _GAP,
        1.0,
        "y = x * a\nloss = y.nanmean()",
        "(x * a[ok]).mean()",
        {
            "select first": "y = x * a[ok]\nloss = y.mean()",
            "double where": "y = x * torch.where(ok, a, 0)\nloss = torch.where(ok, y, 0).sum() / ok.sum()",
            "substitute": "y = x * torch.where(ok, a, 0)\nloss = y.mean()",
            "multiply": "y = x * a\nloss = (y * ok).sum() / ok.sum()",
            "masked": "y = as_masked_tensor(x.expand(3), ok) * masked_tensor(a, ok)\nloss = y.mean()",
        },
        data="a",
    ),
    Situation(
        "x / 0 under a mask",
        "division-under-a-mask",
        "div = torch.tensor([0.0, 1.0])\nok = div != 0",
        [1.0, 1.0],
        "y = x / div\nloss = y[ok].sum()",
        "(x / div[ok]).sum()",
        {
            "select first": "y = x[ok] / div[ok]\nloss = y.sum()",
            "double where": "y = x / torch.where(ok, div, 1)\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = x / torch.where(ok, div, 1)\nloss = y.sum()",
            "multiply": "y = x / div\nloss = (y * ok).sum()",
            "epsilon": "y = x / (div + 1e-8)\nloss = y[ok].sum()",
            "masked": "y = x / div\nloss = as_masked_tensor(y, ok).sum()",
        },
        used="torch.tensor([False, True])",
    ),
    Situation(
        "one number divided by two",
        "division-under-a-mask#what-a-hook-can-do-and-what-it-can-t",
        "div = torch.tensor([0.0, 1.0])\nok = div != 0",
        1.0,
        "y = x / div\nloss = y[ok].sum()",
        "(x / div[ok]).sum()",
        {
            "select first": "y = x / div[ok]\nloss = y.sum()",
            "double where": "y = x / torch.where(ok, div, 1)\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = x / torch.where(ok, div, 1)\nloss = y.sum()",
            "multiply": "y = x / div\nloss = (y * ok).sum()",
            "epsilon": "y = x / (div + 1e-8)\nloss = y[ok].sum()",
            "masked": "y = x / div\nloss = as_masked_tensor(y, ok).sum()",
        },
        data="div",
    ),
    Situation(
        "rows sliced away after a Linear",
        "slicing-nan",
        "rows = torch.tensor([[1.0, 2.0], [nan, 5.0]])\nok = torch.tensor([[True], [False]])",
        [[0.5, -0.5]],
        "y = F.linear(rows, x)\nloss = y[:1].sum()",
        "F.linear(rows[:1], x).sum()",
        {
            "select first": "y = F.linear(rows[:1], x)\nloss = y.sum()",
            "double where": "y = F.linear(torch.where(ok, rows, 0), x)\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = F.linear(rows.nan_to_num(), x)\nloss = y.sum()",
            "multiply": "y = F.linear(rows, x)\nloss = (y * ok).sum()",
            "masked": "y = F.linear(masked_tensor(rows, ok.expand(2, 2)), x)\nloss = y.sum()",
        },
        data="rows",
    ),
    Situation(
        "a missing target",
        "a-run-that-dies-at-step-7",
        _TARGETS,
        1.0,
        "y = (x * a - target).square()\nloss = y[ok].mean()",
        "(x * a[ok] - target[ok]).square().mean()",
        {
            "select first": "y = (x * a[ok] - target[ok]).square()\nloss = y.mean()",
            "double where": "y = (x * a - torch.where(ok, target, 0)).square()\nloss = y[ok].mean()",
            "substitute": "y = (x * a - torch.where(ok, target, 0)).square()\nloss = y.mean()",
            "multiply": "y = (x * a - target).square()\nloss = (y * ok).sum() / ok.sum()",
            "masked": "y = (as_masked_tensor(x * a, ok) - masked_tensor(target, ok)).square()\nloss = y.mean()",
        },
        data="a",
    ),
    Situation(
        "sqrt of 0",
        "undefined",
        "ok = x > 0",
        [0.0, 4.0],
        "y = x.sqrt()\nloss = torch.where(ok, y, 0).sum()",
        "x.sqrt().sum()",
        {
            "select first": "loss = x[ok].sqrt().sum()",
            "double where": "y = torch.where(ok, x, 1).sqrt()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.sqrt()\nloss = (y * ok).sum()",
            "epsilon": "y = (x + 1e-8).sqrt()\nloss = torch.where(ok, y, 0).sum()",
            "masked": "y = as_masked_tensor(x, ok).sqrt()\nloss = y.sum()",
        },
        used="x > 0",
    ),
    Situation(
        "norm of 0, by hand",
        "undefined#distance-of-equal-points-norm-of-zero",
        _ROWS,
        [[0.0, 0.0], [3.0, 4.0]],
        "y = x.square().sum(-1).sqrt()\nloss = y[1:].sum()",
        "x.square().sum(-1).sqrt().sum()",
        {
            "select first": "y = x[1:].square().sum(-1).sqrt()\nloss = y.sum()",
            "double where": "y = torch.where(ok, x, 1).square().sum(-1).sqrt()\nloss = y[1:].sum()",
            "substitute": "y = torch.where(ok, x, 1).square().sum(-1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.square().sum(-1).sqrt()\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = (x.square().sum(-1) + 1e-8).sqrt()\nloss = y[1:].sum()",
            "masked": "y = as_masked_tensor(x, ok.expand(2, 2)).square().sum(-1).sqrt()\nloss = y.sum()",
        },
        used="torch.tensor([False, True])",
    ),
    Situation(
        "std of equal numbers, by hand",
        "undefined#std-of-one-element",
        _ROWS,
        [[3.0, 3.0], [1.0, 2.0]],
        "y = x.var(-1).sqrt()\nloss = y[1:].sum()",
        "x.var(-1).sqrt().sum()",
        {
            "select first": "y = x[1:].var(-1).sqrt()\nloss = y.sum()",
            "double where": "y = torch.where(ok, x, torch.arange(2.0)).var(-1).sqrt()\nloss = y[1:].sum()",
            "substitute": "y = torch.where(ok, x, torch.arange(2.0)).var(-1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.var(-1).sqrt()\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = (x.var(-1) + 1e-8).sqrt()\nloss = y[1:].sum()",
            "masked": "y = as_masked_tensor(x, ok.expand(2, 2)).var(-1).sqrt()\nloss = y.sum()",
        },
        used="torch.tensor([False, True])",
    ),
    Situation(
        "acos of 1",
        "undefined#acos-at-1-the-angle-between-equal-vectors",
        "ok = x < 1",
        [1.0, 0.5],
        "y = x.acos()\nloss = torch.where(ok, y, 0).sum()",
        "x.acos().sum()",
        {
            "select first": "loss = x[ok].acos().sum()",
            "double where": "y = torch.where(ok, x, 0).acos()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 0).acos()\nloss = y.sum()",
            "multiply": "y = x.acos()\nloss = (y * ok).sum()",
            "epsilon": "y = x.clamp(-1 + 1e-7, 1 - 1e-7).acos()\nloss = torch.where(ok, y, 0).sum()",
            "masked": "y = as_masked_tensor(x, ok).acos()\nloss = y.sum()",
        },
        used="x < 1",
    ),
    Situation(
        "log of 0",
        "atlas#point-log-0",
        "ok = x > 0",
        [0.0, 0.5],
        "y = x.log()\nloss = torch.where(ok, y, 0).sum()",
        "x.log().sum()",
        {
            "select first": "loss = x[ok].log().sum()",
            "double where": "y = torch.where(ok, x, 1).log()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 1).log()\nloss = y.sum()",
            "multiply": "y = x.log()\nloss = (y * ok).sum()",
            "epsilon": "y = (x + 1e-8).log()\nloss = torch.where(ok, y, 0).sum()",
            "masked": "y = as_masked_tensor(x, ok).log()\nloss = y.sum()",
        },
        used="x > 0",
    ),
    Situation(
        "0 · log 0",
        "atlas#point-p-log-p-at-0",
        "ok = x > 0",
        [0.0, 0.5],
        "y = x * x.log()\nloss = y.nansum()",
        "(x * x.log()).sum()",
        {
            "select first": "loss = (x[ok] * x[ok].log()).sum()",
            "double where": "y = x * torch.where(ok, x, 1).log()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = x * torch.where(ok, x, 1).log()\nloss = y.sum()",
            "multiply": "y = x * x.log()\nloss = (y * ok).sum()",
            "epsilon": "y = x * (x + 1e-8).log()\nloss = y.nansum()",
            "masked": "y = as_masked_tensor(x, ok)\nloss = (y * y.log()).sum()",
        },
        used="x > 0",
    ),
    Situation(
        "atan2 at the origin",
        "atlas#point-atan2-0-0",
        _ROWS,
        [[0.0, 0.0], [3.0, 4.0]],
        "y = torch.atan2(x[:, 0], x[:, 1])\nloss = y[1:].sum()",
        "torch.atan2(x[:, 0], x[:, 1]).sum()",
        {
            "select first": "y = torch.atan2(x[1:, 0], x[1:, 1])\nloss = y.sum()",
            "double where": "z = torch.where(ok, x, 1)\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = y[1:].sum()",
            "substitute": "z = torch.where(ok, x, 1)\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = y.sum()",
            "multiply": "y = torch.atan2(x[:, 0], x[:, 1])\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = torch.atan2(x[:, 0], x[:, 1] + 1e-8)\nloss = y[1:].sum()",
            "masked": "z = as_masked_tensor(x, ok.expand(2, 2))\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = y.sum()",
        },
        used="torch.tensor([False, True])",
    ),
    Situation(
        "a fully masked softmax row",
        "attention#what-to-do",
        _SCORES,
        [[1.0], [2.0]],
        "y = scores.masked_fill(~keep, -inf).softmax(-1) @ x\nloss = y[:1].sum()",
        "(scores[:1].softmax(-1) @ x).sum()",
        {
            "select first": "y = scores[:1].masked_fill(~keep[:1], -inf).softmax(-1) @ x\nloss = y.sum()",
            "double where": (
                "y = scores.masked_fill(~keep & row, -inf).softmax(-1) @ x\nloss = torch.where(row, y, 0).sum()"
            ),
            "substitute": "y = scores.masked_fill(~keep & row, -inf).softmax(-1) @ x\nloss = y.sum()",
            "multiply": "y = scores.masked_fill(~keep, -inf).softmax(-1) @ x\nloss = (y * row).sum()",
            "epsilon": "y = scores.masked_fill(~keep, -1e9).softmax(-1) @ x\nloss = y[:1].sum()",
            "masked": "y = masked_tensor(scores, keep).softmax(-1) @ x\nloss = y[:1].sum()",
        },
    ),
    Situation(
        "cumsum, the NaN dropped after it",
        "what-counts-as-ignored#by-position",
        _GAP,
        1.0,
        "y = (x * a).cumsum(0)\nloss = y[:2].sum()",
        "(x * a[:2]).cumsum(0).sum()",
        {
            "select first": "y = (x * a[:2]).cumsum(0)\nloss = y.sum()",
            "double where": "y = (x * torch.where(ok, a, 0)).cumsum(0)\nloss = y[:2].sum()",
            "substitute": "y = (x * torch.where(ok, a, 0)).cumsum(0)\nloss = y.sum()",
            "multiply": "y = (x * a).cumsum(0)\nloss = (y * ok).sum()",
            "masked": "z = as_masked_tensor(x.expand(3), ok) * masked_tensor(a, ok)\ny = z.cumsum(0)\nloss = y.sum()",
        },
        data="a",
    ),
    Situation(
        "max pooling, one window dropped",
        "what-counts-as-ignored#by-value-the-largest-the-sorted-the-finite",
        "a = torch.tensor([1.0, 2.0, nan, 4.0])\nok = ~a.isnan()",
        1.0,
        "y = F.max_pool1d((x * a)[None], 2)[0]\nloss = y[:1].sum()",
        "F.max_pool1d((x * a[:2])[None], 2).sum()",
        {
            "select first": "y = F.max_pool1d((x * a[:2])[None], 2)[0]\nloss = y.sum()",
            "double where": "y = F.max_pool1d((x * torch.where(ok, a, 0))[None], 2)[0]\nloss = y[:1].sum()",
            "substitute": "y = F.max_pool1d((x * torch.where(ok, a, 0))[None], 2)[0]\nloss = y.sum()",
            "multiply": "y = F.max_pool1d((x * a)[None], 2)[0]\nloss = (y * torch.tensor([1.0, 0.0])).sum()",
            "masked": (
                "z = as_masked_tensor(x.expand(4), ok) * masked_tensor(a, ok)\n"
                "y = F.max_pool1d(z[None], 2)[0]\nloss = y[:1].sum()"
            ),
        },
        data="a",
    ),
    Situation(
        "an infinite input, clamped later",
        "what-counts-as-ignored#by-value-bounds",
        "a = torch.tensor([1.0, inf])\nok = a.isfinite()",
        1.0,
        "y = x * a\nloss = y.clamp(max=3).sum()",
        "(x * a[ok]).sum()",
        {
            "select first": "y = x * a[ok]\nloss = y.clamp(max=3).sum() + 3 * (~ok).sum()",
            "double where": "y = x * torch.where(ok, a, 0)\nloss = torch.where(ok, y.clamp(max=3), 3).sum()",
            "substitute": "y = x * torch.where(ok, a, 0)\nloss = y.clamp(max=3).sum()",
            "multiply": "y = x * a\nloss = (y.clamp(max=3) * ok + 3 * ~ok).sum()",
            "masked": ("y = as_masked_tensor(x.expand(2), ok) * masked_tensor(a, ok)\nloss = y.clamp(max=3).sum() + 3"),
        },
        data="a",
    ),
)
"""The loss ignores the dangerous element. Its gradient is 0, and the gradient of all other elements exists."""

USED = (
    Situation(
        "sqrt of 0",
        "undefined",
        "ok = x > 0",
        [0.0, 4.0],
        "y = x.sqrt()\nloss = y.sum()",
        "x.sqrt()",
        {
            "select first": "y = x[ok].sqrt()\nloss = y.sum()",
            "double where": "y = torch.where(ok, x, 1).sqrt()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.sqrt()\nloss = (y * ok).sum()",
            "epsilon": "y = (x + 1e-8).sqrt()\nloss = y.sum()",
            "masked": "y = as_masked_tensor(x, ok).sqrt()\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "norm of 0, by hand",
        "undefined#distance-of-equal-points-norm-of-zero",
        _ROWS,
        [[0.0, 0.0], [3.0, 4.0]],
        "y = x.square().sum(-1).sqrt()\nloss = y.sum()",
        "x.square().sum(-1).sqrt()",
        {
            "select first": "y = x[1:].square().sum(-1).sqrt()\nloss = y.sum()",
            "double where": (
                "y = torch.where(ok, x, 1).square().sum(-1).sqrt()\nloss = torch.where(ok[:, 0], y, 0).sum()"
            ),
            "substitute": "y = torch.where(ok, x, 1).square().sum(-1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.square().sum(-1).sqrt()\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = (x.square().sum(-1) + 1e-8).sqrt()\nloss = y.sum()",
            "masked": "y = as_masked_tensor(x, ok.expand(2, 2)).square().sum(-1).sqrt()\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "std of equal numbers, by hand",
        "undefined#std-of-one-element",
        _ROWS,
        [[3.0, 3.0], [1.0, 2.0]],
        "y = x.var(-1).sqrt()\nloss = y.sum()",
        "x.var(-1).sqrt()",
        {
            "select first": "y = x[1:].var(-1).sqrt()\nloss = y.sum()",
            "double where": (
                "y = torch.where(ok, x, torch.arange(2.0)).var(-1).sqrt()\nloss = torch.where(ok[:, 0], y, 0).sum()"
            ),
            "substitute": "y = torch.where(ok, x, torch.arange(2.0)).var(-1).sqrt()\nloss = y.sum()",
            "multiply": "y = x.var(-1).sqrt()\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = (x.var(-1) + 1e-8).sqrt()\nloss = y.sum()",
            "masked": "y = as_masked_tensor(x, ok.expand(2, 2)).var(-1).sqrt()\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "acos of 1",
        "undefined#acos-at-1-the-angle-between-equal-vectors",
        "ok = x < 1",
        [1.0, 0.5],
        "y = x.acos()\nloss = y.sum()",
        "x.acos()",
        {
            "select first": "y = x[ok].acos()\nloss = y.sum()",
            "double where": "y = torch.where(ok, x, 0).acos()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 0).acos()\nloss = y.sum()",
            "multiply": "y = x.acos()\nloss = (y * ok).sum()",
            "epsilon": "y = x.clamp(-1 + 1e-7, 1 - 1e-7).acos()\nloss = y.sum()",
            "masked": "y = as_masked_tensor(x, ok).acos()\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "log of 0",
        "atlas#point-log-0",
        "ok = x > 0",
        [0.0, 0.5],
        "y = x.log()\nloss = y.sum()",
        "x.log()",
        {
            "select first": "y = x[ok].log()\nloss = y.sum()",
            "double where": "y = torch.where(ok, x, 1).log()\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.where(ok, x, 1).log()\nloss = y.sum()",
            "multiply": "y = x.log()\nloss = (y * ok).sum()",
            "epsilon": "y = (x + 1e-8).log()\nloss = y.sum()",
            "masked": "y = as_masked_tensor(x, ok).log()\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "xlogy(0, 0)",
        "atlas#point-xlogy-0-0",
        "ok = x > 0",
        [0.0, 0.5],
        "y = torch.xlogy(x, x)\nloss = y.sum()",
        "torch.xlogy(x, x)",
        {
            "select first": "y = torch.xlogy(x[ok], x[ok])\nloss = y.sum()",
            "double where": "y = torch.xlogy(x, torch.where(ok, x, 1))\nloss = torch.where(ok, y, 0).sum()",
            "substitute": "y = torch.xlogy(x, torch.where(ok, x, 1))\nloss = y.sum()",
            "multiply": "y = torch.xlogy(x, x)\nloss = (y * ok).sum()",
            "epsilon": "y = torch.xlogy(x, x + 1e-8)\nloss = y.sum()",
            "masked": "z = as_masked_tensor(x, ok)\ny = torch.xlogy(z, z)\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "atan2 at the origin",
        "atlas#point-atan2-0-0",
        _ROWS,
        [[0.0, 0.0], [3.0, 4.0]],
        "y = torch.atan2(x[:, 0], x[:, 1])\nloss = y.sum()",
        "torch.atan2(x[:, 0], x[:, 1])",
        {
            "select first": "y = torch.atan2(x[1:, 0], x[1:, 1])\nloss = y.sum()",
            "double where": (
                "z = torch.where(ok, x, 1)\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = torch.where(ok[:, 0], y, 0).sum()"
            ),
            "substitute": "z = torch.where(ok, x, 1)\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = y.sum()",
            "multiply": "y = torch.atan2(x[:, 0], x[:, 1])\nloss = (y * ok[:, 0]).sum()",
            "epsilon": "y = torch.atan2(x[:, 0], x[:, 1] + 1e-8)\nloss = y.sum()",
            "masked": "z = as_masked_tensor(x, ok.expand(2, 2))\ny = torch.atan2(z[:, 0], z[:, 1])\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "a fully masked softmax row",
        "attention#what-to-do",
        _SCORES,
        [[1.0], [2.0]],
        "y = scores.masked_fill(~keep, -inf).softmax(-1) @ x\nloss = y.sum()",
        "scores.masked_fill(~keep, -inf).softmax(-1) @ x",
        {
            "select first": "y = scores[:1].masked_fill(~keep[:1], -inf).softmax(-1) @ x\nloss = y.sum()",
            "double where": (
                "y = scores.masked_fill(~keep & row, -inf).softmax(-1) @ x\nloss = torch.where(row, y, 0).sum()"
            ),
            "substitute": "y = scores.masked_fill(~keep & row, -inf).softmax(-1) @ x\nloss = y.sum()",
            "multiply": "y = scores.masked_fill(~keep, -inf).softmax(-1) @ x\nloss = (y * row).sum()",
            "epsilon": "y = scores.masked_fill(~keep, -1e9).softmax(-1) @ x\nloss = y.sum()",
            "masked": "y = masked_tensor(scores, keep).softmax(-1) @ x\nloss = y.sum()",
        },
        ignores=False,
    ),
    Situation(
        "a missing target",
        "a-run-that-dies-at-step-7",
        _TARGETS,
        1.0,
        "y = (x * a - target).square()\nloss = y.mean()",
        "(x * a - target).square().mean()",
        {
            "select first": "y = (x * a[ok] - target[ok]).square()\nloss = y.mean()",
            "double where": (
                "y = (x * a - torch.where(ok, target, 0)).square()\nloss = torch.where(ok, y, 0).sum() / ok.sum()"
            ),
            "substitute": "y = (x * a - torch.where(ok, target, 0)).square()\nloss = y.mean()",
            "multiply": "y = (x * a - target).square()\nloss = (y * ok).sum() / ok.sum()",
            "masked": "y = (as_masked_tensor(x * a, ok) - masked_tensor(target, ok)).square()\nloss = y.mean()",
        },
        ignores=False,
        data="a",
    ),
    Situation(
        "infinity times a computed 0",
        "division-under-a-mask#what-a-hook-can-do-and-what-it-can-t",
        "div = torch.tensor([0.0, 1.0])\nweight = torch.tensor([2.0 - 6.0 / 3.0, 1.0])\nok = div != 0",
        [1.0, 1.0],
        "y = x / div\nloss = (weight * y).sum()",
        "weight * (x / div)",
        {
            "select first": "y = x[ok] / div[ok]\nloss = (weight[ok] * y).sum()",
            "double where": "y = x / torch.where(ok, div, 1)\nloss = (weight * torch.where(ok, y, 0)).sum()",
            "substitute": "y = x / torch.where(ok, div, 1)\nloss = (weight * y).sum()",
            "multiply": "y = x / div\nloss = (weight * y * ok).sum()",
            "epsilon": "y = x / (div + 1e-8)\nloss = (weight * y).sum()",
            "masked": "y = x / div\nloss = (masked_tensor(weight, ok) * as_masked_tensor(y, ok)).sum()",
        },
        ignores=False,
    ),
)
"""The loss uses the dangerous element. The gradient of that element is undefined."""
