"""What is around a compiled region, and in it: training goes as on the good rows alone, or a warning says why not."""

import warnings
from functools import partial

import pytest
import torch
from comparing import BAD, FINITE, STEPS, compare, is_finite, is_used, loss_of, network, state
from torch import nn

from zero_or_nan import ignoring

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serial"),  # of inductor itself
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # Dynamo looks at it
]


class Program:
    """Trains a network. Subclasses change what is around its compiled region, and what is in it.

    Args:
        compile: makes the region: of the model, or, if `whole`, of the loss with its selection.
    """

    def __init__(self, compile, whole=False):
        self.compile, self.whole = compile, whole

    def model(self):
        return network()

    def loss(self, model, rows):
        return loss_of(model, rows)

    def losses(self):
        """A function of the model and the rows, with its region."""
        if self.whole:
            return self.compile(self.loss)
        regions = {}
        return lambda model, rows: self.loss(regions.setdefault(model, self.compile(model)), rows)

    def step(self, ignoring, loss, optimizer):
        ignoring.backward(loss)
        optimizer.step()

    def __call__(self, ignoring, rows):
        torch._dynamo.reset()
        model = self.model()
        optimizer, loss_of_rows = torch.optim.SGD(model.parameters(), lr=0.1), self.losses()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of_rows(model, rows)
            self.step(ignoring, loss, optimizer)
        written = [buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()]
        return [*state(model, loss), *written]


class AfterANorm(Program):
    """The statistics of the norm are those of the good rows. The region writes them into buffers."""

    def model(self):
        return Normed()

    def loss(self, model, rows):
        return model(rows).square().sum()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, rows):
        good = self.first(rows).view(3, -1, 6)[:, :2].reshape(6, 6)
        return self.last(torch.tanh(self.norm(good)))


class Writing(Program):
    """The region writes into a buffer, and in place into what a gradient goes through."""

    def model(self):
        model = Activated(network())
        model.register_buffer("seen", torch.zeros(4))
        return model


class Activated(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, rows):
        self.seen.mul_(0.5).add_(torch.where(is_used(rows)[:, None], rows, 0.0).sum(0))
        hidden = self.layers[0](rows)
        hidden.tanh_()
        return self.layers[2](hidden)


class WritingArguments(Program):
    """The region writes into an argument that has a gradient."""

    def losses(self):
        activate = self.compile(activated)

        def loss(model, rows):
            hidden = model[0](rows) * 1
            activate(hidden)
            return torch.where(is_used(rows)[:, None], model[2](hidden).square(), 0.0).sum()

        return loss


def activated(hidden):
    hidden.tanh_()
    return hidden.sum()


class Hooked(Program):
    """Hooks on parameters see plain gradients, and change them."""

    def model(self):
        model = network()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 0.5 if type(gradient) is torch.Tensor else None)
            parameter.register_post_accumulate_grad_hook(doubled)
        return model


def doubled(parameter):
    parameter.grad.mul_(2.0)


compiled = partial(torch.compile, backend="aot_eager")


@pytest.mark.parametrize("program", [AfterANorm, Hooked, WritingArguments], ids=lambda program: program.__name__)
def test_a_compiled_model(program):
    compare(program(compiled))


def test_a_compiled_loss():
    compare(Writing(compiled, whole=True))


def test_inductor(marked, inductor):
    compare(Writing(torch.compile))


def uncompiled(function):
    return function


def test_a_norm_over_bad_rows_stays_nan():
    """In training mode its statistics mix the rows. The buffers are written once, as in uncompiled code."""

    def found(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        ignoring.backward(loss_of(compile(model), BAD))
        return [*(p.grad for p in model.parameters()), *model.buffers()]

    assert not is_finite(found(compiled))
    torch.testing.assert_close(found(compiled), found(uncompiled), equal_nan=True)


def masked_gradients(compile, rows, whole):
    torch._dynamo.reset()
    model = network()
    x = rows.clone().requires_grad_()
    loss = compile(loss_of)(model, x) if whole else loss_of(compile(model), x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ignoring")
        return ignoring.grad(loss, [x, *model.parameters()], ignored="masked")


@pytest.mark.parametrize("rows", [BAD, FINITE], ids=["bad", "finite"])
@pytest.mark.parametrize("whole", [False, True])
def test_masks_are_those_of_uncompiled_code(rows, whole):
    both = (masked_gradients(compile, rows, whole) for compile in (compiled, uncompiled))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours.get_mask(), theirs.get_mask())
        torch.testing.assert_close(ours.get_data(), theirs.get_data())


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_ignored_is_counted_in_a_region_too(whole):
    counts = []
    for compile in (uncompiled, compiled):
        torch._dynamo.reset()
        model = network()
        loss = compile(loss_of)(model, BAD) if whole else loss_of(compile(model), BAD)
        with ignoring.counting() as counted:
            ignoring.backward(loss)
        counts.append((counted.passes, counted.kept_clean, counted.rows, counted.of_rows))
    assert counts[0] == counts[1] == (1, 1, 2, 9)
