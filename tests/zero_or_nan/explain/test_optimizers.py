"""No optimizer is blamed for a NaN in the gradient that it gets; each is for the NaN that it makes itself."""

import inspect
from math import nan

import pytest
import torch
from origins import report_of, telling
from sample import sample
from torch import nn

OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]
OPTIONS = {
    "foreach": [{"foreach": True}, {"foreach": False}],
    "fused": [{"fused": True}],
    "amsgrad": [{"amsgrad": True}, {"amsgrad": True, "fused": True}],
    "centered": [{"centered": True, "momentum": 0.9}],
    "nesterov": [{"nesterov": True, "momentum": 0.9}],
}
"""By parameter of an optimizer. `capturable` needs a GPU."""

TRIED = [
    pytest.param(kind, options, id=f"{kind.__name__} {options}")
    for kind in OPTIMIZERS
    for options in [{}, *(each for parameter, given in OPTIONS.items() for each in given)]
    if set(options) <= set(inspect.signature(kind).parameters)
]

told = telling("kind", "operator", "module")


SPOILT = {
    "nothing": (lambda y: y, []),
    "loss": (lambda y: y * torch.tensor([nan, 1.0]), ["mul"]),
    "overflow": (lambda y: y * 1e38 * 1e10, ["mul"]),
    "gradient": (lambda y: torch.where(torch.tensor([True, False]), y, (y * 0).sqrt()), ["sqrt"]),
    "by hand": (lambda y: y, ["div"]),
}
"""What happens to a result in the second step, and the operators that are blamed for it."""


def train(kind, options, spoils):
    torch.manual_seed(0)
    is_sparse = kind is torch.optim.SparseAdam
    model = nn.Embedding(3, 2, sparse=True) if is_sparse else nn.Linear(3, 2, bias=kind.__name__ != "Muon")
    few = {"max_iter": 3} if kind is torch.optim.LBFGS else {}
    optimizer = kind(model.parameters(), lr=0.01, **options, **few)
    for number in range(3):
        x = torch.tensor([0, 1]) if is_sparse else torch.randn(4, 3)

        def closure(x=x, spoils=spoils if number == 1 else "nothing"):
            optimizer.zero_grad()
            loss = SPOILT[spoils][0](model(x)).square().sum()
            loss.backward()
            if spoils == "by hand":
                model.weight.grad.div_(0)
            return loss

        optimizer.step(closure)
    return str(list(model.parameters()))


@pytest.mark.parametrize(("kind", "options"), sample(TRIED, every=9))
def test_a_gradient_that_is_not_finite(kind, options):
    for spoils, (_, operators) in SPOILT.items():
        plain, watched = train(kind, options, spoils), []
        report = report_of(lambda spoils=spoils, watched=watched: watched.append(train(kind, options, spoils)))
        assert watched == [plain]
        is_finite = "nan" not in plain and "inf" not in plain  # Rprop takes signs, and LBFGS takes no step
        is_quiet = spoils == "by hand" and is_finite
        assert [origin.operator for origin in report] == ([] if is_quiet else operators), (spoils, report)


def test_the_forward_in_a_closure_is_not_the_optimizers():
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)

    def closure():
        y = w * 1
        y.sub_(1).log_()
        y.sum().backward()
        return y.sum()

    assert told(report_of(lambda: optimizer.step(closure))) == [("undefined", "log", "")]


inf = float("inf")
LAST = {
    "eps is 0 in float16": (torch.optim.Adam, {}, torch.float16, 1.0, 1e-4, "undefined", "eps=1e-4"),
    "0 by 0, all at once": (torch.optim.AdamW, {"foreach": True}, torch.float16, 1.0, 0.0, "undefined", "eps=1e-4"),
    "root of eps": (torch.optim.RMSprop, {}, torch.float16, 1.0, 1e-4, "undefined", "eps"),
    "decay": (torch.optim.AdamW, {"lr": 1e20, "weight_decay": 1.0}, torch.float32, 1e30, 1.0, "overflow", "rate"),
    "weight decay, fused": (
        torch.optim.SGD, {"weight_decay": 1e10, "fused": True}, torch.float32, 1e30, 1.0, "overflow", "weight_decay"
    ),
    "step": (torch.optim.SGD, {"lr": 1e10}, torch.float32, 1.0, 1e30, "overflow", "learning rate"),
    "learning rate": (torch.optim.SGD, {"lr": inf}, torch.float32, 1.0, 1.0, "bad input", "lr"),
    "learning rate times 0": (torch.optim.SGD, {"lr": inf}, torch.float32, 1.0, 0.0, "bad input", "lr"),
}  # fmt: skip


@pytest.mark.parametrize("case", LAST)
def test_the_last_step_of_a_block_is_told(case):
    """No pass comes after it, and every gradient is finite. A wider type, or other options, keep the weight finite."""
    kind, options, dtype, weight, slope, expected, word = LAST[case]
    w = torch.full((2,), weight, dtype=dtype, requires_grad=True)
    optimizer = kind([w], **options)

    def program():
        (w * slope).sum().backward()
        optimizer.step()

    (origin,) = report_of(program)
    assert w.grad.isfinite().all() and not w.isfinite().any()
    assert (origin.kind, origin.module, origin.reached) == (expected, f"{kind.__name__}.step", ["w"])
    assert origin.source == "optimizer.step()" and word in origin.remedy
    assert "the optimizer wrote this element into a parameter" in str(origin)


BY_HAND = [
    (lambda w: w.addcdiv_(w.grad * 0, w.grad * 0, value=-1.0), ("undefined", "addcdiv", "-1 × 0 / 0")),
    (lambda w: w.add_(w.grad * 1e30, alpha=-1e20), ("overflow", "add", "-1e20 × 1e30 < -3.4e38")),
    (lambda w: w.div_(0), ("undefined", "div", "… / 0")),
    (lambda w: w.neg_().log_(), ("undefined", "log", "")),
    (lambda w: w.add_(torch.ones(2) * inf), ("bad input", "mul", "inf")),  # the noise of an unbounded gradient
]


@pytest.mark.parametrize(("change", "expected"), BY_HAND)
def test_a_step_by_hand_is_told_without_the_number_that_it_overwrote(change, expected):
    w = torch.full((2,), 5.0, requires_grad=True)

    def program():
        w.sum().backward()
        with torch.no_grad():
            change(w)

    report = report_of(program)
    assert telling("kind", "operator", "operands")(report) == [expected]
    assert "your code wrote this element into a tensor that needs a gradient" in str(report)


def test_a_number_that_goes_round_all_passes_is_told_if_it_still_exists():
    w = torch.ones(2, requires_grad=True)

    def program():
        (slope,) = torch.autograd.grad((w * 0).sum(), w)
        assert (slope / slope.norm()).shape == (2,)

    def direction():
        (slope,) = torch.autograd.grad((w * 0).sum(), w)
        w.grad = slope / slope.norm()

    assert report_of(program).ok
    report = report_of(direction)
    assert told(report) == [("undefined", "div", "")] and "a result has this element, and the value" in str(report)


def test_what_does_no_harm_after_the_last_pass_is_not_told():
    w = torch.ones(2, dtype=torch.float16, requires_grad=True)
    before, optimizer = w.detach().clone(), torch.optim.Adam([w])

    def restored():
        (w * 0).sum().backward()
        optimizer.step()
        with torch.no_grad():
            w.copy_(before)

    def left_out():
        w.sum().backward()
        with torch.no_grad():
            w.masked_fill_(torch.tensor([True, False]), -inf)

    kept = torch.log(torch.tensor([1.0, 0.0])).requires_grad_()

    def ignored():
        kept.data = torch.log(torch.tensor([1.0, 0.0]))
        torch.where(torch.tensor([True, False]), kept, 0).sum().backward()
        torch.optim.SGD([kept], lr=0.1).step()

    for program in (restored, left_out, ignored):
        report = report_of(program)
        assert report.ok, report


def test_a_step_adds_nothing_to_what_its_gradient_is_told_of():
    w = torch.zeros(2, requires_grad=True)

    def program():
        torch.where(w > 0, w.log(), 0).sum().backward()
        torch.optim.SGD([w], lr=0.1).step()

    assert told(report_of(program)) == [("contaminated", "log", "")]
    assert w.isnan().all()
