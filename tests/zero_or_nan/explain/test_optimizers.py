"""No optimizer is blamed for a NaN in the gradient that it gets; each is for the NaN that it makes itself."""

import inspect

import pytest
import torch
from sample import sample
from torch import nn

from zero_or_nan import explain

nan = float("nan")
OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
OPTIONS = {
    "foreach": [{"foreach": True}, {"foreach": False}],
    "fused": [{"fused": True}],
    "amsgrad": [{"amsgrad": True}, {"amsgrad": True, "fused": True}],
    "centered": [{"centered": True, "momentum": 0.9}],
    "nesterov": [{"nesterov": True, "momentum": 0.9}],
}
"""By parameter of an optimizer. `capturable` needs a GPU."""

TRIED = [
    pytest.param(kind, options, id=f"{name} {options}")
    for name, kind in OPTIMIZERS.items()
    for options in [{}, *(each for parameter, given in OPTIONS.items() for each in given)]
    if set(options) <= set(inspect.signature(kind).parameters)
]


def forward(model, x, spoils):
    y = model(x)
    if spoils == "loss":
        return y * torch.tensor([nan, 1.0])
    if spoils == "overflow":
        return y * 1e38 * 1e10
    if spoils == "gradient":
        return torch.where(torch.tensor([True, False]), y, (y * 0).sqrt())
    return y


def train(kind, options, spoils):
    torch.manual_seed(0)
    is_sparse = kind is torch.optim.SparseAdam
    model = nn.Embedding(3, 2, sparse=True) if is_sparse else nn.Linear(3, 2, bias=kind.__name__ != "Muon")
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for number in range(3):
        x = torch.tensor([0, 1]) if is_sparse else torch.randn(4, 3)

        def closure(x=x, number=number):
            optimizer.zero_grad()
            loss = forward(model, x, spoils if number == 1 else None).square().sum()
            loss.backward()
            if spoils == "by hand" and number == 1:
                model.weight.grad.div_(0)
            return loss

        optimizer.step(closure)
    return str(list(model.parameters()))


ORIGINS = {None: [], "loss": ["mul"], "overflow": ["mul"], "gradient": ["sqrt"], "by hand": ["div"]}


@pytest.mark.parametrize("spoils", ORIGINS)
@pytest.mark.parametrize(("kind", "options"), sample(TRIED, every=4))
def test_a_gradient_that_is_not_finite(kind, options, spoils):
    plain = train(kind, options, spoils)
    with explain() as report:
        assert train(kind, options, spoils) == plain
    is_finite = "nan" not in plain and "inf" not in plain  # Rprop takes signs, and LBFGS takes no step
    if spoils == "by hand" and is_finite:
        assert report.ok
        return
    assert [origin.operator for origin in report] == ORIGINS[spoils], report


OWN = [
    (torch.optim.Adam, {"eps": 0.0}, torch.float32),
    (torch.optim.Adam, {"eps": 0.0, "fused": True}, torch.float32),
    (torch.optim.AdamW, {}, torch.float16),
    (torch.optim.AdamW, {"foreach": True}, torch.float16),
    (torch.optim.RMSprop, {"eps": 0.0, "foreach": True}, torch.float32),
    (torch.optim.Adagrad, {}, torch.float16),
    (torch.optim.NAdam, {}, torch.float16),
    (torch.optim.Adadelta, {"eps": 0.0}, torch.float32),
]


def train_with_gradient_0(kind, options, dtype):
    w = torch.ones(2, dtype=dtype, requires_grad=True)
    optimizer = kind([w], **options)
    for _ in range(3):
        optimizer.zero_grad()
        (w * 0).sum().backward()
        optimizer.step()
    return w


@pytest.mark.parametrize(("kind", "options", "dtype"), OWN)
def test_what_an_optimizer_makes_itself(kind, options, dtype):
    with explain() as report:
        w = train_with_gradient_0(kind, options, dtype)
    assert w.isnan().all()
    (origin,) = report
    assert (origin.kind, origin.module, origin.count) == ("undefined", f"{kind.__name__}.step", 2)
    assert origin.times == 1 and "eps" in origin.remedy
    if "fused" not in options:
        assert origin.operands in ("0 / 0", "1 / 0 = inf")


@pytest.mark.parametrize(("kind", "options", "dtype"), OWN)
def test_the_remedy_of_that(kind, options, dtype):
    larger = {**options, "eps": 1e-4}
    assert train_with_gradient_0(kind, larger, dtype).isfinite().all()
    assert train_with_gradient_0(kind, {**options, "eps": 1e-8}, torch.float32).isfinite().all()


def test_a_step_that_is_too_large():
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1e38)
    with explain() as report:
        for _ in range(2):
            optimizer.zero_grad()
            (w * 100).sum().backward()
            optimizer.step()
        (w * 2).sum().backward()
    (origin,) = report
    assert (origin.kind, origin.module) == ("overflow", "SGD.step") and "learning rate" in origin.remedy


def test_the_forward_in_a_closure_is_not_the_optimizers():
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)

    def closure():
        y = w * 1
        y.sub_(1).log_()
        y.sum().backward()
        return y.sum()

    with explain() as report:
        optimizer.step(closure)
    (origin,) = report
    assert (origin.operator, origin.module) == ("log", "")


def test_an_optimizer_of_the_users():
    class Divides(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.div_(p.grad)

    w = torch.ones(2, requires_grad=True)
    optimizer = Divides([w])
    with explain() as report:
        for _ in range(2):
            optimizer.zero_grad()
            (w * 0).sum().backward()
            optimizer.step()
        (w * 2).sum().backward()
    assert {(origin.operator, origin.module) for origin in report} == {("div", "Divides.step")}
