"""Formulas: references by other means than ours, and the text of the page.

The page itself claims, in each build, what each formula gives and how near it is to float64.
"""

import mpmath
import pytest
import torch
from scratch import ROOT

from helpers.atlas import EFFECTS
from helpers.compare import Tolerance, differing
from helpers.entries import outcome
from helpers.formulas import FORMULAS, Formula

PAGE = (ROOT / "chapters" / "losses-and-geometry.md").read_text(encoding="utf-8")
every = pytest.mark.parametrize("formula", FORMULAS, ids=[formula.name for formula in FORMULAS])
exact = pytest.mark.parametrize("formula", [f for f in FORMULAS if f.effect == "Exact"], ids=lambda each: each.name)


def agree(observed, expected, **tolerance):
    return differing(outcome(expected), outcome(observed), Tolerance(**tolerance)) == []


def tensors(given, dtype):
    found = {key: torch.tensor(value) for key, value in given.items()}
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in found.items()}


def called(formula, x, given, copied=True):
    names = {"torch": torch, "F": torch.nn.functional, "x": x, **given}
    exec(formula.write if copied else formula.by_hand, names)
    return eval(formula.call if copied else formula.call.replace("(", "_by_hand(", 1), names)


@exact
def test_an_exact_gradient_is_the_quotient_of_differences_in_float64(formula):
    x = torch.tensor(formula.at, dtype=torch.float64, requires_grad=True)
    given = tensors(formula.given, torch.float64)
    assert torch.autograd.gradcheck(lambda x: called(formula, x, given).sum(), x)
    (gradient,) = torch.autograd.grad(called(formula, x, given).sum(), x)
    assert agree(gradient, formula.reference, atol=1e-12)


@every
def test_in_float64_the_copy_is_the_formula_by_hand(formula):
    x, given = formula.ordinary()
    given = {key: value.double() if value.is_floating_point() else value for key, value in given.items()}
    # BCELoss and the cross entropy by hand lose digits at the ends in any dtype; SI-SDR has an epsilon on purpose.
    near = 1e-5 if "SI-SDR" in formula.name else 1e-10
    for copied, other in zip(*[_both(formula, x.double(), given, copied) for copied in (True, False)], strict=True):
        assert (copied - other).abs().max() <= near * other.abs().max().clamp(min=1)


def _both(formula, x, given, copied):
    x = x.clone().requires_grad_()
    value = called(formula, x, given, copied)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


HIGH = {
    "BCE by hand, a confident and wrong logit": lambda: [mpmath.diff(lambda x: -mpmath.log(1 - _sigmoid(x)), 20)],
    "focal loss, logits −200 and 100": lambda: [mpmath.diff(_focal, at) for at in (-200, 100)],
    "KL, a target of 0": lambda: [
        mpmath.diff(_divergence, (0, 0, 0), tuple(row)) for row in torch.eye(3).int().tolist()
    ],
    "entropy, a masked logit": lambda: [*(mpmath.diff(_entropy, (0, 1), order) for order in ((1, 0), (0, 1))), 0],
}
"""Gradients of the formulas as a textbook has them, with 200 digits, where the terms of probability 0 are left out."""


def _focal(x):
    return -mpmath.sqrt(1 - _sigmoid(x)) * mpmath.log(_sigmoid(x))


def _divergence(*logits):
    total = sum(map(mpmath.exp, logits))
    p = (0, mpmath.mpf(1) / 4, mpmath.mpf(3) / 4)
    return sum(a * mpmath.log(a / (mpmath.exp(x) / total)) for a, x in zip(p, logits, strict=True) if a)


def _entropy(*logits):
    total = sum(map(mpmath.exp, logits))
    return -sum(mpmath.exp(x) / total * mpmath.log(mpmath.exp(x) / total) for x in logits)


@pytest.mark.parametrize("name", HIGH)
def test_a_reference_is_the_slope_of_the_textbook_formula_in_many_digits(name):
    (formula,) = [formula for formula in FORMULAS if formula.name == name]
    with mpmath.workdps(200):
        slopes = [float(slope) for slope in HIGH[name]()]
    reference = formula.reference if isinstance(formula.reference, list) else [formula.reference]
    assert slopes == pytest.approx(reference, abs=1e-15)


def test_the_loss_of_ctc_is_that_of_its_alignments():
    (formula,) = [formula for formula in FORMULAS if formula.name.startswith("CTC")]
    logits = torch.randn(2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    p = logits[:, 1].softmax(-1)
    # Of the four alignments of two frames, only blank, blank does not spell the target.
    listed = -(1 - p[0, 0] * p[1, 0]).log()
    got = called(formula, logits, tensors(formula.given, torch.float64))
    assert got.item() == pytest.approx(listed.item(), rel=1e-12)
    both = [torch.autograd.grad(loss, logits)[0] for loss in (got, listed)]
    assert torch.allclose(*both, atol=1e-12)


def test_ctc_leaves_out_what_does_not_fit_and_keeps_the_mean_of_the_rest():
    (formula,) = [formula for formula in FORMULAS if formula.name.startswith("CTC")]
    targets = torch.tensor([[1, 1, 2], [1, 2, 0], [2, 2, 2], [1, 2, 1]])
    lengths, frames = torch.tensor([3, 2, 1, 3]), torch.tensor([3, 2, 3, 3])
    x = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
    given = {"targets": targets, "frames": frames, "lengths": lengths}
    fits = torch.tensor([False, True, True, True])  # 1 1 2 takes four frames
    right = torch.nn.functional.ctc_loss(x[:, fits].log_softmax(-1), targets[fits], frames[fits], lengths[fits])
    assert called(formula, x, given).item() == pytest.approx(right.item(), rel=1e-6)


def test_the_page_has_a_section_for_each_formula_and_an_effect_says_whether_there_is_a_right_gradient():
    for formula in FORMULAS:
        assert f"\n### {formula.section}\n" in PAGE
        assert formula.effect in EFFECTS
        assert (formula.effect in ("Exact", "Removes")) <= (formula.reference is not None)
        assert (formula.chosen is not None) is (formula.effect in ("Chooses", "Bounds"))
    giou = FORMULAS[[formula.call for formula in FORMULAS].index("giou(x, b)")]
    assert "def ratio(" in giou.write and giou.by_hand.startswith("def giou_by_hand(a, b):\n")
    with pytest.raises(LookupError, match="losses-and-geometry.md defines the function no_such"):
        Formula("", "", "no_such(x)", 0.0, 0.0, None, "Exact", tuple, 0).write  # noqa: B018
    bce = FORMULAS[0]
    assert bce.measured(copied=False)[1].isnan() and agree(bce.measured()[1], bce.expected, ulps=4)
    assert all(far <= bce.ulps for far in bce.furthest()) and bce.node() == "SigmoidBackward0"
