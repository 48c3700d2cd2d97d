"""Formulas: references by other means than ours, and the text of the page.

The page itself claims, in each build, what each formula gives and how near it is to float64.
"""

import pytest
import torch
from scratch import ROOT

from helpers.atlas import EFFECTS
from helpers.compare import Tolerance, differing
from helpers.entries import outcome
from helpers.formulas import FORMULAS, Formula, _table

PAGE = (ROOT / "chapters" / "losses-and-geometry.md").read_text(encoding="utf-8")
exact = pytest.mark.parametrize("formula", [f for f in FORMULAS if f.effect == "Exact"], ids=lambda each: each.name)


def tensors(given, dtype):
    found = {key: torch.tensor(value) for key, value in given.items()}
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in found.items()}


def called(formula, x, given):
    names = {"torch": torch, "F": torch.nn.functional, "x": x, **given}
    exec(formula.write, names)
    return eval(formula.call, names)


@exact
def test_an_exact_gradient_is_the_quotient_of_differences_in_float64(formula):
    x = torch.tensor(formula.at, dtype=torch.float64, requires_grad=True)
    given = tensors(formula.given, torch.float64)
    assert torch.autograd.gradcheck(lambda x: called(formula, x, given).sum(), x)
    (gradient,) = torch.autograd.grad(called(formula, x, given).sum(), x)
    assert differing(outcome(formula.reference), outcome(gradient), Tolerance(atol=1e-12)) == []


def test_ctc_leaves_out_what_does_not_fit_and_keeps_the_mean_of_the_rest():
    (formula,) = [formula for formula in FORMULAS if formula.name.startswith("CTC")]
    targets = torch.tensor([[1, 1, 2], [1, 2, 0], [2, 2, 2], [1, 2, 1]])
    lengths, frames = torch.tensor([3, 2, 1, 3]), torch.tensor([3, 2, 2, 3])  # what is padded counts for nothing
    x = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
    given = {"targets": targets, "frames": frames, "lengths": lengths}
    fits = torch.tensor([False, True, True, True])  # 1 1 2 takes four frames
    right = torch.nn.functional.ctc_loss(x[:, fits].log_softmax(-1), targets[fits], frames[fits], lengths[fits])
    assert called(formula, x, given).item() == pytest.approx(right.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_cosine_of_a_zero_vector_leaves_no_nan_in_either_vector(dtype):
    (formula,) = [formula for formula in FORMULAS if formula.name.startswith("cosine")]
    for zero_first in (True, False):
        pair = [torch.tensor([0.0, 0.0], dtype=dtype), torch.tensor([3.0, 4.0], dtype=dtype)][
            :: 1 if zero_first else -1
        ]
        a, b = [each.requires_grad_() for each in pair]
        names = {"torch": torch, "F": torch.nn.functional}
        exec(formula.write, names)
        for gradient in torch.autograd.grad(names["cosine"](a, b), [a, b]):
            assert torch.equal(gradient, torch.zeros_like(gradient))


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
    assert FORMULAS[0].node() == "SigmoidBackward0"


def test_the_table_has_the_right_gradient_only_where_the_copy_has_another():
    table = _table(FORMULAS).body
    assert table.count("the right gradient is") == table.count(">2.69e+43<") == 1  # exp(100), of the policy ratio
