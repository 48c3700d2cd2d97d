"""What is ignored and what is not: each idea by its smallest example, judged by what the loss says."""

import math

import pytest
import torch
import torch.nn.functional as F
from tensors import bits
from torch import Tensor, nn

from zero_or_nan import ignoring

nan, inf = math.nan, math.inf


def gradient(loss, *values, like=torch.float32):
    x = torch.tensor(values, dtype=like, requires_grad=True)
    (result,) = ignoring.grad(loss(x), x)
    assert type(result) is Tensor
    return result


def plain(loss, *values, like=torch.float32):
    x = torch.tensor(values, dtype=like, requires_grad=True)
    return torch.autograd.grad(loss(x), x)[0]


# The public cases.

DIVISOR, COUNT = torch.tensor([0.0, 2.0]), torch.tensor([2, 0])


def assigned_over(x):
    y = x / DIVISOR
    y[DIVISOR == 0] = 0
    return y


CASES = {
    "where over exp": (lambda x: torch.where(x < 50, x.exp(), 0.0), [0.0, 100.0], [1.0, 0.0]),
    "where over a division": (lambda x: torch.where(x != 0, 1 / x, 0.0), [2.0, 0.0], [-0.25, 0.0]),
    "where over a division by an integer": (lambda x: torch.where(x > -1, x, x / 0), [2.0, 0.0], [1.0, 1.0]),
    "where over a count of 0": (lambda x: torch.where(COUNT > 0, x / COUNT, 0.0), [3.0, 0.0], [0.5, 0.0]),
    "clamp after a root": (lambda x: x.sqrt().clamp(min=1.0), [4.0, 0.0], [0.25, 0.0]),
    "nansum of x/x": (lambda x: (x / x).nansum(), [1.0, 0.0], [0.0, 0.0]),
    "nansum of x*x/x": (lambda x: (x * x / x).nansum(), [1.0, 0.0], [1.0, 0.0]),
    "nanmean": (lambda x: x.log().nanmean(), [1.0, -1.0], [1.0, 0.0]),
    "a division by zero left out by an index": (lambda x: (x / DIVISOR)[DIVISOR != 0], [1.0, 1.0], [0.0, 0.5]),
    "a division by zero assigned over": (assigned_over, [1.0, 1.0], [0.0, 0.5]),
    "masked_fill, then a slice": (
        lambda x: x.exp().masked_fill(torch.tensor([True, False, False]), 0)[:2],
        [100.0, 1.0, 100.0], [0.0, math.e, 0.0],
    ),
    "dangers in a row": (
        lambda x: torch.where(x > 0, (1 / x.sqrt()).log().exp().sin(), 0.0), [4.0, 0.0], [-math.cos(0.5) / 16, 0.0]
    ),
    "an inner selection alone": (
        lambda x: torch.where(x > 0, (x + torch.where(x > 0, 0.0, nan)).log(), 0.0), [2.0, -1.0], [0.5, 0.0]
    ),
    "what is ignored, through a derivative of 0": (
        lambda x: torch.where(x < 50, x.exp().floor() + x, 0.0), [1.0, 100.0], [1.0, 0.0]
    ),
    "one use that ignores and one that does not": (
        lambda x: torch.where(x < 50, x.exp(), 0.0) + 3 * x, [0.0, 100.0], [4.0, 3.0]
    ),
    "one intermediate used twice": (
        lambda x: [torch.where(x < 50, y, 0.0) + torch.where(x < 60, y, 0.0) for y in [x.exp()]][0],
        [0.0, 100.0], [2.0, 0.0],
    ),
    "an overflow that a second use selects": (
        lambda x: [torch.where(x < 50, y, 0.0).sum() + y[1] for y in [x.exp()]][0], [0.0, 100.0], [1.0, inf]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_loss_has_the_gradient_of_what_it_uses(name):
    loss, values, expected = CASES[name]
    assert gradient(lambda x: loss(x).sum(), *values).tolist() == pytest.approx(expected)


def test_rows_of_a_linear_layer_give_the_bits_of_the_good_rows_alone():
    torch.manual_seed(0)
    rows = torch.randn(6, 4)
    layer, twin = nn.Linear(4, 3), nn.Linear(4, 3)
    twin.load_state_dict(layer.state_dict())
    bad = rows.clone()
    bad[3:] = nan
    ignoring.backward(layer(bad)[:3].sum())
    twin(rows.index_fill(0, torch.arange(3, 6), 0.0))[:3].sum().backward()
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert bits(ours.grad) == bits(theirs.grad)


# Every kind of danger behind a selection, and every kind of selection behind a danger.

DANGERS = {
    # the function, a good argument, a bad one, its derivative at the good one
    "exp": (torch.exp, 1.0, 100.0, math.e),
    "log": (torch.log, 2.0, 0.0, 0.5),
    "sqrt": (torch.sqrt, 4.0, 0.0, 0.25),
    "rsqrt": (torch.rsqrt, 4.0, 0.0, -0.0625),
    "1/x": (lambda x: 1 / x, 2.0, 0.0, -0.25),
    "x/x": (lambda x: x / x, 2.0, 0.0, 0.0),
    "x/0": (lambda x: x / torch.where(x > 0, 2.0, 0.0), 2.0, 0.0, 0.5),
    "x**0.5": (lambda x: x**0.5, 4.0, 0.0, 0.25),
    "x**-1": (lambda x: x**-1, 2.0, 0.0, -0.25),
    "asin": (torch.asin, 0.0, 2.0, 1.0),
    "inf*x": (lambda x: x * torch.where(x > 1, inf, 3.0), 1.0, 2.0, 3.0),
    "nan*x": (lambda x: x * torch.where(x > 1, nan, 3.0), 1.0, 2.0, 3.0),
    "sinh": (torch.sinh, 0.0, 100.0, 1.0),
    "norm": (lambda x: (x[:, None] * 0 + x[:, None]).norm(dim=1), 2.0, 0.0, 1.0),
}  # fmt: skip


def assigned_by_index(y, good):
    y = y.clone()
    y[(~good).nonzero().squeeze(1)] = torch.full((int((~good).sum()),), 7.0)
    return y.sum()


def filled_view(y, good):
    y = y.clone()
    y[1:3].zero_()
    return y.sum()


# The good entries are 0 and 3, the bad ones 1 and 2.
OUTSIDE = torch.tensor([0, 3])
KINDS = {
    "where": lambda y, good: torch.where(good, y, 0.0).sum(),
    "masked_fill_": lambda y, good: y.clone().masked_fill_(~good, 0.0).sum(),
    "take_along_dim": lambda y, good: y.take_along_dim(OUTSIDE, 0).sum(),
    "tensor_split": lambda y, good: y.tensor_split((1, 3))[0].sum() + y.tensor_split((1, 3))[2].sum(),
    "assignment by index": assigned_by_index,
    "zero_ of a view": filled_view,
    "index_put": lambda y, good: y.index_put((~good,), torch.tensor(0.0)).sum(),
    "scatter, a source": lambda y, good: y.scatter(0, torch.tensor([1, 2]), torch.ones(2)).sum(),
    "diag": lambda y, good: y.reshape(2, 2).diag().sum(),
    "einsum of selected": lambda y, good: torch.einsum("i,i->", y[good], torch.ones(2)),
    "expand and index": lambda y, good: y.expand(2, 4)[:, good].sum() / 2,
    "as_strided": lambda y, good: y.as_strided((2,), (3,)).sum(),
    "a permuted view": lambda y, good: y.reshape(2, 2).t()[[0, 1], [0, 1]].sum(),
}  # fmt: skip


GOOD = torch.tensor([True, False, False, True])


@pytest.mark.parametrize(
    ("danger", "kind"), [*((danger, "where") for danger in DANGERS), *(("exp", kind) for kind in KINDS)]
)
def test_a_selection_shields_from_a_danger(kind, danger):
    function, fine, wrong, slope = DANGERS[danger]
    x = torch.where(GOOD, fine, wrong).requires_grad_()
    loss = KINDS[kind](function(x), GOOD)
    assert loss.isfinite()
    ignoring.backward(loss)
    assert x.grad.tolist() == pytest.approx([slope, 0.0, 0.0, slope], rel=1e-6)


# A zero that was computed is a number.


def test_weights_computed_as_zero_do_not_ignore():
    result = gradient(lambda x: (x.exp() * (x < 50).float()).nansum(), 1.0, 100.0)
    assert result[0] == pytest.approx(math.e) and result[1] == 0  # inf * 0 is NaN, which nansum leaves out
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    loss = (x.exp() * (x < 50).float()).sum()
    ignoring.backward(loss)
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()


BOOL = torch.tensor([True, False])


@pytest.mark.parametrize("zero", [
    lambda y: y * 0, lambda y: y * BOOL, lambda y: BOOL * y, lambda y: y * BOOL.int(), lambda y: y * BOOL.float(),
    lambda y: y - y, lambda y: y @ torch.zeros(2, 1), lambda y: y * (y < 0), lambda y: y**0,
])  # fmt: skip
def test_a_computed_zero_keeps_the_nan_of_plain_pytorch(zero):
    loss = lambda x: zero(x.sqrt()).sum()  # noqa: E731
    ours, theirs = gradient(loss, 4.0, 0.0), plain(loss, 4.0, 0.0)
    assert bits(ours) == bits(theirs) and ours[1].isnan()


def test_a_softmax_weight_of_zero_is_a_number():
    loss = lambda x: (torch.tensor([0.0, -inf]).softmax(0) * x.sqrt()).sum()  # noqa: E731
    assert gradient(loss, 4.0, 0.0)[1].isnan() and plain(loss, 4.0, 0.0)[1].isnan()


# What is truly undefined or infinite where the loss uses it stays so.

UNDEFINED = {
    "norm at the origin": (lambda x: x.norm(), [0.0, 0.0]),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x.sqrt()), [0.0, 0.0]),
    "relu at 0 of an overflow": (lambda x: x.exp().relu().sum(), [1.0, 100.0]),
    "var of constant sqrt": (lambda x: x.sqrt().std(), [0.0, 0.0]),
    "prod with 0": (lambda x: x.sqrt().prod(), [4.0, 0.0]),
    "atan2 at the origin": (lambda x: torch.atan2(x, x).sum(), [1.0, 0.0]),
    "logsumexp of inf": (lambda x: torch.logsumexp(x, 0), [inf, 1.0]),
    "sinc of overflow": (lambda x: torch.sinc(x.exp()).sum(), [1.0, 100.0]),
    "log_softmax": (lambda x: torch.log_softmax(x.exp(), 0)[0], [1.0, 100.0]),
    "softmax": (lambda x: torch.softmax(x.exp(), 0)[0], [1.0, 100.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_undefined_and_used_stays_as_in_plain_pytorch(name):
    """Alone, and beside an element that is ignored, so that masks are in the pass."""
    loss, values = UNDEFINED[name]

    def both(x):
        return loss(x[:2]) + torch.where(x[2:] < 50, x[2:].exp(), 0.0).sum()

    assert bits(gradient(loss, *values)) == bits(plain(loss, *values))
    ours = gradient(both, *values, 1.0, 100.0)
    assert bits(ours[:2]) == bits(plain(both, *values, 1.0, 100.0)[:2])
    assert ours[2:].tolist() == pytest.approx([math.e, 0.0])


def test_ignored_only_if_all_that_went_in_is():
    x = torch.tensor([1.0, 100.0, 100.0], requires_grad=True)
    total = torch.where(x < 50, x.exp(), 0.0).sum()
    (result,) = ignoring.grad(total + x[1] * 0, x, ignored="masked")
    assert result.get_mask().tolist() == [True, True, False]
    assert result.get_data().tolist() == pytest.approx([math.e, 0.0, 0.0])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_of_a_softmax_those_count_that_share_an_entrys_sum(function, dim, each_way):
    x = (1000 * torch.arange(6.0)).reshape(2, 3).requires_grad_()  # most weights are 0, and so are most gradients
    (result,) = ignoring.grad(function(x, dim)[0, 1], x, ignored="masked")
    fibre = torch.zeros(2, 3, dtype=torch.bool)
    fibre.select(1 - dim % 2, 1 if dim == 0 else 0).fill_(True)
    assert result.get_mask().tolist() == fibre.tolist()


@pytest.mark.parametrize("form", [
    lambda y: y.sum(), lambda y: y.mean() * 2, lambda y: y.expand(3, 2).sum() / 3,
    lambda y: torch.stack([y, y]).sum() / 2,
    lambda y: y.cumsum(0)[1], lambda y: y @ torch.ones(2), lambda y: (y.reshape(1, 2) @ torch.ones(2, 1)).sum(),
    lambda y: y.repeat(2).sum() / 2, lambda y: F.conv1d(y.reshape(1, 1, 2), torch.ones(1, 1, 2)).sum(),
    lambda y: torch.einsum("i,j->ij", y, torch.ones(2)).sum() / 2, lambda y: torch.add(y, y).sum() / 2,
    lambda y: y.new_zeros(2).index_add(0, torch.tensor([0, 0]), y).sum(),
    lambda y: y.new_zeros(2).scatter_add(0, torch.tensor([0, 0]), y).sum(),
    lambda y: F.interpolate(y.reshape(1, 1, 2), scale_factor=2).sum() / 2,
    lambda y: F.avg_pool1d(y.reshape(1, 1, 2), 2).sum() * 2,
])  # fmt: skip
def test_linear_functions_hand_the_knowledge_on(form):
    result = gradient(lambda x: form(torch.where(x < 50, x.exp(), 0.0)), 0.0, 100.0)
    assert result.tolist() == pytest.approx([1.0, 0.0], rel=1e-6)
