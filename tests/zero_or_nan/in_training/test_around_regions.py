"""What is around a compiled region, and in it: training goes as on the good rows alone, or a warning says why not."""

import warnings
from functools import partial

import pytest
import torch
from comparing import BAD, FINITE, compare, is_finite, is_used, loss_of, network, state, steps
from torch import nn

from zero_or_nan import ignoring

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serial"),  # of inductor itself
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # Dynamo looks at it
]


compiled = partial(torch.compile, backend="aot_eager")


class Writing(nn.Module):
    """Writes into a buffer, and in place into what a gradient goes through."""

    def __init__(self):
        super().__init__()
        self.layers = network()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, rows):
        self.seen.mul_(0.5).add_(torch.where(is_used(rows)[:, None], rows, 0.0).sum(0))
        hidden = self.layers[0](rows)
        hidden.tanh_()
        return self.layers[2](hidden)


def doubled(parameter):
    parameter.grad.mul_(2.0)


def train(ignoring, rows, compile):
    """Hooks on parameters see plain gradients, and change them."""
    torch._dynamo.reset()
    model, loss_of_rows = Writing(), compile(loss_of)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5 if type(gradient) is torch.Tensor else None)
        parameter.register_post_accumulate_grad_hook(doubled)
    for _ in steps(model):
        loss = loss_of_rows(model, rows)
        ignoring.backward(loss)
    return [*state(model, loss), model.seen]


def test_a_region_that_writes_between_hooks():
    compare(partial(train, compile=compiled))


def test_the_same_by_inductor(marked, inductor):
    """Bad rows alone, because each training compiles anew."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ignoring")
        ours = train(ignoring, BAD, torch.compile)
    torch.testing.assert_close(ours, train(ignoring, BAD, compiled), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("rows", [BAD, FINITE], ids=["bad", "finite"])
@pytest.mark.parametrize("whole", [False, True])
def test_masks_and_counts_are_those_of_uncompiled_code(rows, whole):
    def found(compile):
        torch._dynamo.reset()
        model, x = network(), rows.clone().requires_grad_()
        loss = compile(loss_of)(model, x) if whole else loss_of(compile(model), x)
        with warnings.catch_warnings(), ignoring.counting() as counted:
            warnings.filterwarnings("error", message="ignoring")
            masked = ignoring.grad(loss, [x, *model.parameters()], ignored="masked")
        counts = [counted.passes, counted.kept_clean, counted.rows, counted.of_rows]
        return counts, [one.get_mask() for one in masked], [one.get_data() for one in masked]

    (counts, *ours), (expected, *theirs) = found(compiled), found(uncompiled)
    assert counts == expected == ([1, 1, 2, 9] if rows is BAD else [1, 0, 0, 0])
    torch.testing.assert_close(ours, theirs)
