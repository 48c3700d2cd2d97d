"""Zeros that a derivative formula fills in are no selections of the program."""

import contextlib
import itertools
import math

import pytest
import torch
from sample import sample
from torch import Tensor
from torch.utils._pytree import tree_flatten

from zero_or_nan import explain, ignoring
from zero_or_nan.functions import fills
from zero_or_nan.functions.graph import function_of, graph_from
from zero_or_nan.functions.record import record_of
from zero_or_nan.selfcheck.poisoned import database

FILLED = {
    "the square of a norm": (lambda x: torch.linalg.vector_norm(x) ** 2, [0.0, 0.0]),
    "norm of order 1/2": (lambda x: torch.linalg.vector_norm(x, 0.5), [0.0, 1.0]),
    "renorm, within the formula of a function that selects": (lambda x: x[None].renorm(0.5, 0, 0.5)[0], [0.0, 1.0]),
    "sinc": (torch.sinc, [0.0, 1.5]),
    "atan2": (lambda x: torch.atan2(x[0], x[1]), [0.0, 0.0]),
    "xlogy": (lambda x: torch.xlogy(x[0], x[1]), [0.0, 0.0]),
    "pow, by the base": (lambda x: x[0] ** x[1], [0.0, 0.0]),
    "pow, by the exponent alone": (lambda x: torch.zeros(2).double() ** x, [0.0, 2.0]),
    "a power of the number 0": (lambda x: 0.0**x, [0.0, 2.0]),
    "logit of NaN": (torch.logit, [math.nan, 0.3]),
    "logit of NaN, with eps": (lambda x: torch.logit(x, 0.1), [math.nan, 0.3]),
    "angle of complex numbers": (lambda x: torch.angle(torch.complex(x, x)), [0.0, 1.0]),
}
if torch.__version__ >= "2.15":  # compared as versions; before, it had no derivative
    FILLED["bessel_y1"] = torch.special.bessel_y1, [0.0, 1.5]


def derivative(grads, f, point, w=(0.7, -1.3)):
    x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    weights, out = torch.tensor(w, dtype=torch.float64), f(x)
    for number, grad in enumerate(grads, 1):
        loss = (out * weights if out.shape == weights.shape else out).sum()
        (out,) = grad(loss, [x], create_graph=number < len(grads))
    return out


@pytest.mark.parametrize("case", FILLED)
def test_a_derivative_behind_a_filled_zero_is_plain_pytorchs(case):
    """Also behind a selection: it sends a mask, so the pass interprets the formula, and its conditions get objects."""
    f, point = FILLED[case]
    plain, ours = torch.autograd.grad, ignoring.grad
    for orders in (1, 2):
        right = derivative([plain] * (orders + 1), f, point)
        assert not right.isfinite().all()
        for first in (plain, ours):
            found = derivative([first] * orders + [ours], f, point)
            torch.testing.assert_close(found, right, equal_nan=True, rtol=0, atol=0)
        if orders == 1:
            selected = derivative([ours] * 2, lambda x: torch.where(torch.tensor(True), f(x), 0), point)
            torch.testing.assert_close(selected, right, equal_nan=True, rtol=0, atol=0)


def test_a_recorded_selection_selects_nothing_where_it_compared_nan():
    """Elsewhere, what was not selected has the second derivative 0."""
    x = torch.tensor([math.nan, 0.0, 0.3], dtype=torch.float64, requires_grad=True)
    (slope,) = ignoring.grad(x.logit(0.1).sum(), [x], create_graph=True)
    (second,) = ignoring.grad(slope.sum(), [x])
    assert second[0].isnan() and second[1] == 0 and second[2].isfinite()
    y = torch.full_like(x, math.inf).requires_grad_()
    (slope,) = ignoring.grad((x.clamp(min=0.1) * y.exp()).sum(), [x], create_graph=True)
    (mixed,) = ignoring.grad(slope[:2].sum(), [y])
    assert mixed[0].isnan() and mixed[1] == 0
    rows = torch.tensor([[math.nan, 1.0], [0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = ignoring.grad(rows.renorm(2, 0, 0.5).sum(), [rows], create_graph=True)
    (second,) = ignoring.grad(slope.sum(), [rows])
    assert second[0].isnan().all() and not second[1].any()


def test_a_plain_record_of_logit_with_eps_selects():
    x = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(x.logit(0.1).sum(), [x], create_graph=True)
    (second,) = ignoring.grad(slope.sum(), [x])
    assert second[:2].tolist() == [0, 0] and second[2].isfinite()


@pytest.mark.parametrize(
    "used, first", [([-math.inf, -math.inf], 0), ([-math.inf, -math.inf], 1), ([-math.inf, 1.0, 2.0], 0)]
)
def test_logcumsumexp_of_minus_infinity_has_no_second_derivative(used, first):
    """The first formula is ours, because an element is ignored. PyTorch's shows what the used elements alone give."""

    def f(x):
        return x.logcumsumexp(0)[first : len(used)]

    right = derivative([torch.autograd.grad] * 2, f, used)
    found = derivative([ignoring.grad] * 2, f, [*used, math.nan])
    torch.testing.assert_close(found, torch.cat([right, torch.zeros(1)]), equal_nan=True)


def test_logcumsumexp_of_a_minus_infinity_before_the_used_total_has_the_slope_0():
    """By the formula exp(x[0] - total[1]), it is 0. The first total is -inf, but the loss does not use it."""
    x = torch.tensor([-math.inf, 1.0, math.nan], requires_grad=True)
    assert ignoring.grad(x.logcumsumexp(0)[1], [x])[0].tolist() == [0, 1, 0]


SELECTED = {
    "masked_fill behind a quotient by a norm": lambda v, n: (v / n).masked_fill(n == 0, 0),
    "where, a product with a power and a logarithm": lambda v, n: torch.where(v == 0, 0, v**0.5 * v.log()),
}


@pytest.mark.parametrize("case", SELECTED)
def test_the_same_operators_in_a_program_select(case):
    v = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    selected = SELECTED[case](v, torch.linalg.vector_norm(v))
    for _ in range(2):  # the second time, the condition has been read
        (gradient,) = ignoring.grad(selected.sum(), [v], retain_graph=True)
        assert gradient.tolist() == [0, 0]


@pytest.mark.parametrize("watches_the_first", [False, True])
def test_explain_does_not_call_such_a_gradient_contaminated(watches_the_first):
    v = torch.zeros(2, requires_grad=True)
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(explain()) if watches_the_first else None
        (slope,) = torch.autograd.grad(torch.linalg.vector_norm(v) ** 2, v, create_graph=True)
        report = report or stack.enter_context(explain())
        slope.sum().backward()
    assert [origin.kind for origin in report.origins] == ["undefined"]


HARMLESS = frozenset(
    """
    GridSampler2DBackward GridSampler3DBackward IndexReduce Nextafter ScatterReduce SpecialBesselJ1
    SpecialI1 SpecialI1E SpecialModifiedBesselI1
    """.split()
)
"""Their formulas fill in a NaN, or compute with a harmless number in place of 0: no zero hides another number."""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_samples")
def test_every_formula_that_fills_in_zeros_is_recognized(monkeypatch):
    """For the samples of PyTorch's operators. Anomaly mode knows which node belongs to which formula."""
    monkeypatch.setattr("torch.fx.traceback.format_stack", list)  # anomaly mode would keep the stack of each call
    found = [
        (function_of(formula.name()), bool(fills.fills_in(node)))
        for op in sample(database(), 16, 5)
        for case in itertools.islice(samples(op), 20)
        for node, formula in choosing_nodes(op, case)
        if not record_of(formula).may_select(formula)
    ]
    assert any(is_known for _, is_known in found)
    assert {name for name, is_known in found if not is_known} <= HARMLESS


def samples(op):
    try:
        yield from op.sample_inputs("cpu", torch.float64, requires_grad=True)
    except Exception:  # this operator has no samples of that dtype
        return


def choosing_nodes(op, case):
    """Each node in the record of a sample's gradient that chooses by a condition, with the node of its formula."""
    leaves = [t for t in tree_flatten((case.input, case.args, case.kwargs))[0] if isinstance(t, Tensor)]
    leaves = [t for t in leaves if t.requires_grad]
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            outputs = tree_flatten(op(case.input, *case.args, **case.kwargs))[0]
            outputs = [out for out in outputs if isinstance(out, Tensor) and out.requires_grad]
            loss = sum(out.abs().square().sum() for out in outputs)
            forward = graph_from([loss])
            gradients = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    except Exception:  # no second derivative
        return
    for node in graph_from([gradient for gradient in gradients if gradient is not None]):
        if function_of(node.name()) in ("MaskedFill", "Where") and node not in forward:
            yield node, node.metadata["parent_"]
