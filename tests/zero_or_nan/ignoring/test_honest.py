"""Programs written to break the promise: no NaN that the loss has is hidden, nothing that it ignored contaminates."""

import math
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from telling import told
from tensors import bits

from zero_or_nan import ignoring

B = torch.tensor([True, False])
T = torch.tensor([1.0, 0.0])


def gradients(loss, values):
    """Ours, plain PyTorch's, and what was warned of."""

    def gradient(backward):
        x = torch.tensor(values, requires_grad=True)
        try:
            backward(loss(x))
        except RuntimeError as error:
            if "not implemented" in str(error):
                pytest.skip("this PyTorch has no derivative of it")
            raise
        return x.grad

    ours, messages = told(lambda: gradient(ignoring.backward))
    return ours, gradient(torch.autograd.backward), messages


def in_place(function):
    """An in-place function on a slice of a root, which has an infinite slope at 0."""

    def loss(x):
        y = x.sqrt() * 1
        function(y[0:2])
        return y.sum()

    return loss


def ratio(function):
    """Of 0/0, which is NaN: so is the loss."""
    return lambda x: function(x / x)


# What the loss uses: ours has the bits of plain PyTorch, NaN and inf included.

ON_A_SLICE = {
    "mul_": lambda s: s.mul_(B), "floor_": lambda s: s.floor_(),
    "sign_": lambda s: s.sign_(), 
    "pow_(0)": lambda s: s.pow_(0), 
    "cumprod_": lambda s: s.cumprod_(0), "div_ floor": lambda s: s.div_(torch.ones(2), rounding_mode="floor"),
    "atan2_": lambda s: s.atan2_(T),
    "clamp_ beyond": lambda s: s.clamp_(-1, 9),
    "twice": lambda s: s.mul_(B).add_(0.0),
}  # fmt: skip

COMPUTED_ZEROS = {
    "0 times it": lambda y: y * 0, "a bool times it": lambda y: y * B, "int times it": lambda y: B.int() * y,
    "the power of 0": lambda y: y**0, "it less itself": lambda y: y - y, "zeros @": lambda y: y @ torch.zeros(2, 1),
    "a weight of 0": lambda y: torch.tensor([0.0, -inf]).softmax(0) * y,
}  # fmt: skip

USED = {
    **{name: (lambda x, zero=zero: zero(x.sqrt()).sum(), [4.0, 0.0]) for name, zero in COMPUTED_ZEROS.items()},
    "a norm of roots": (lambda x: torch.linalg.vector_norm(x.sqrt()), [0.0, 0.0]),
    "std of constant sqrt": (lambda x: x.sqrt().std(), [0.0, 0.0]),
    "logsumexp of inf": (lambda x: torch.logsumexp(x, 0), [inf, 1.0]),
    "softmax of an overflow": (lambda x: torch.softmax(x.exp(), 0)[0], [1.0, 100.0]),
    **{f"{name} on a slice": (in_place(function), [4.0, 0.0]) for name, function in ON_A_SLICE.items()},
    "clamp_ of NaN on a slice": (lambda x: slice_of_ratio(x, lambda s: s.clamp_(0, 2)), [1.0, 0.0]),
    "relu_ of NaN on a slice": (lambda x: slice_of_ratio(x, lambda s: s.relu_()), [1.0, 0.0]),
    "a bound of clamp": (ratio(lambda y: torch.ones(2).clamp(min=y).sum()), [1.0, 0.0]),
    "a clamped loss": (ratio(lambda y: y.sum().clamp(max=5)), [1.0, 0.0]),
    "triplet_margin_loss": (
        ratio(lambda y: F.triplet_margin_loss(y[None], torch.ones(1, 2), torch.zeros(1, 2))), [1.0, 0.0]),
    "corrcoef of a constant row": (
        lambda x: torch.corrcoef(torch.stack([x, torch.tensor([1.0, 2.0])])).sum(), [1.0, 1.0]),
    "aminmax": (ratio(lambda y: sum(torch.aminmax(y))), [1.0, 0.0]),
    # Kernels that work on many entries at once write other zeros at NaN.
    **{
        f"{name} of many": (ratio(lambda y, f=f: f(y.repeat(16)).sum()), [1.0, 0.0])
        for name, f in {
            "hardtanh": F.hardtanh, "relu6": F.relu6, "softshrink": F.softshrink, "hardshrink": F.hardshrink,
            "relu": F.relu, "threshold": lambda y: F.threshold(y, 0, 0), "clamp": lambda y: y.clamp(0, 9),
            "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
        }.items()
    },
    "hardshrink by 0": (lambda x: F.hardshrink(x.sqrt(), 0.0).sum(), [4.0, 0.0]),
    "softshrink by 0": (lambda x: F.softshrink(x.sqrt(), 0.0).sum(), [4.0, 0.0]),
    "cdist, p=1": (ratio(lambda y: torch.cdist(y[None], torch.ones(1, 2), p=1.0).sum()), [1.0, 0.0]),
    "bernoulli": (lambda x: torch.bernoulli(x.sqrt() / 4).sum(), [4.0, 0.0]),
    "bilinear, a weight of 0": (
        lambda x: F.interpolate(x.sqrt().view(1, 1, 2, 2), size=(3, 3), mode="bilinear", align_corners=True)[..., 0, 0],
        [4.0, 0.0, 0.0, 0.0]),
    "bicubic, a weight of 0": (
        lambda x: F.interpolate(x.sqrt().view(1, 1, 2, 2), size=(4, 4), mode="bicubic", align_corners=True)[0, 0, 0, 0],
        [4.0, 0.0, 0.0, 0.0]),
    "a sum with 0 times it": (lambda x: torch.add(torch.ones(2), x.sqrt(), alpha=0).sum(), [4.0, 0.0]),
    "a weight of prelu": (lambda x: F.prelu(torch.tensor([[1.0, 0.0], [2.0, 3.0]]), x.sqrt()).sum(), [4.0, 0.0]),
    "copysign": (lambda x: torch.copysign(x.sqrt(), torch.ones(2)).sum(), [4.0, 0.0]),
    "copysign by a number": (lambda x: torch.copysign(x.sqrt(), 1.0).sum(), [4.0, 0.0]),
    "nextafter of NaN": (ratio(lambda y: torch.nextafter(y, torch.ones(2)).sum()), [1.0, 0.0]),
    "a triangle that is read": (
        lambda x: torch.linalg.solve_triangular(x.sqrt().view(2, 2), torch.ones(2, 1), upper=False).sum(),
        [4.0, 1.0, 0.0, 4.0]),
    "prod with two zeros": (lambda x: x.sqrt().prod(), [0.0, 0.0, 4.0]),
    "an attention value that came through": (
        lambda x: F.scaled_dot_product_attention(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1),
                                                 (x / x).view(1, 1, 2, 1), is_causal=True).sum(), [1.0, 0.0]),
    "an attention key that is cut off": (
        lambda x: F.scaled_dot_product_attention(
            torch.ones(1, 1, 1, 2), (x / x).view(1, 1, 2, 1).expand(1, 1, 2, 2), torch.ones(1, 1, 2, 2), is_causal=True
        ).sum(), [4.0, 0.0]),
}  # fmt: skip


def slice_of_ratio(x, function):
    y = x / x
    function(y[0:2])
    return y.sum()


@pytest.mark.parametrize("name", USED)
def test_what_the_loss_uses_stays_as_undefined_as_it_is(name):
    """Alone, and beside an element that is ignored."""
    loss, values = USED[name]

    def beside(x):
        return loss(x[:-1]) + torch.where(x[-1:] < 50, x[-1:].exp(), 0.0).sum()

    ours, plain, messages = gradients(loss, values)
    assert bits(ours) == bits(plain) and not plain.isfinite().all() and not messages
    ours, plain, messages = gradients(beside, [*values, 100.0])
    assert bits(ours[:-1]) == bits(plain[:-1]) and ours[-1] == 0 and plain[-1].isnan() and not messages


# What hooks write are numbers; the loss uses the entry.

ZEROING = {
    "zeros_like": torch.zeros_like,
    "where": lambda g: torch.where(B, g, 0.0),
    "in place": lambda g: written(g),
    "clamp": lambda g: g.clamp(max=0),
}


def written(gradient):
    gradient[1] = 0.0
    return gradient


SOURCES = {
    "a root": lambda x: x.sqrt(),
    "where": lambda x: torch.where(x >= 0, x.sqrt(), 0.0),
    "a slice": lambda x: torch.cat([x.sqrt(), x])[:2],
    "clamp": lambda x: x.sqrt().clamp(min=-1),
    "an assignment": lambda x: assigned(torch.cat([x.sqrt(), x]))[:2],
}


def assigned(y):
    y[2:] = 0.0
    return y


@pytest.mark.parametrize(
    ("hook", "source"), [*((hook, "a root") for hook in ZEROING), *(("in place", source) for source in SOURCES)]
)
def test_a_zero_that_a_hook_writes_hides_nothing_wherever_the_tensor_comes_from(hook, source):
    def loss(x):
        y = SOURCES[source](x)
        y.register_hook(ZEROING[hook])
        return y.sum() + torch.where(x < 50, x.exp(), 0.0).sum()

    ours, plain, messages = gradients(loss, [4.0, 0.0])
    assert bits(ours) == bits(plain) and not plain[1].isfinite() and not messages


# What the loss ignored.

FIXED = {
    "nanmean": (lambda x: (x * x / x).nanmean(), [1.0, 0.0], [1.0, 0.0]),
    "dangers in a row": (
        lambda x: torch.where(x > 0, (1 / x.sqrt()).log().exp().sin(), 0.0).sum(), [4.0, 0.0],
        [-math.cos(0.5) / 16, 0.0]),
    "an inner selection alone": (
        lambda x: torch.where(x > 0, (x + torch.where(x > 0, 0.0, nan)).log(), 0.0).sum(), [2.0, -1.0], [0.5, 0.0]),
    "what is ignored, through a derivative of 0": (
        lambda x: torch.where(x < 50, x.exp().floor() + x, 0.0).sum(), [1.0, 100.0], [1.0, 0.0]),
    "one use that ignores and one that does not": (
        lambda x: (torch.where(x < 50, x.exp(), 0.0) + 3 * x).sum(), [0.0, 100.0], [4.0, 3.0]),
    "relu_ on a slice": (in_place(lambda s: s.relu_()), [4.0, 0.0], [0.25, 0.0]),
    "masked_fill_ on a slice": (in_place(lambda s: s.masked_fill_(~B, 1.0)), [4.0, 0.0], [0.25, 0.0]),
    "clamp_ on a slice": (in_place(lambda s: s.clamp_(min=1)), [4.0, 0.0], [0.25, 0.0]),
    "assignment to a slice": (in_place(lambda s: written(s)), [4.0, 0.0], [0.25, 0.0]),
    "alpha": (
        lambda x: torch.where(x < 50, torch.add(torch.zeros(2), x, alpha=inf), 0.0).sum(), [1.0, 100.0], [inf, 0.0]),
    "leaky_relu": (lambda x: torch.where(x > 0, F.leaky_relu(x, inf), 0.0).sum(), [1.0, -1.0], [1.0, 0.0]),
    "softplus": (
        lambda x: torch.where(x < 50, F.softplus(x, threshold=1000), 0.0).sum(), [0.0, 500.0], [0.5, 0.0]),
    "weights of an embedding_bag": (
        lambda x: F.embedding_bag(
            torch.tensor([[0], [1]]), torch.tensor([[2.0], [nan]]), per_sample_weights=x[:, None], mode="sum")[0].sum(),
        [1.0, 1.0], [2.0, 0.0]),
    **{
        f"embedding_bag, {mode}, with padding": (
            lambda x, mode=mode: F.embedding_bag(
                torch.tensor([[0, 1]]), x.sqrt()[:, None], mode=mode, padding_idx=1).sum(),
            [4.0, 0.0, 0.0], [0.25, 0.0, 0.0])
        for mode in ("sum", "mean", "max")
    },
    "a column of an attention's values": (
        lambda x: F.scaled_dot_product_attention(
            x[:1].expand(1, 1, 2, 2), torch.ones(1, 1, 2, 2), (x / x).expand(1, 1, 2, 2)
        )[..., 0].sum(), [4.0, 0.0], [0.0, 0.0]),
    "index_reduce, the largest": (
        lambda x: torch.zeros(1).index_reduce(0, torch.tensor([0, 0]), x.sqrt(), "amax").sum(),
        [4.0, 0.0], [0.25, 0.0]),
    "index_reduce, written over": (
        lambda x: x.sqrt().index_reduce(0, torch.tensor([1]), torch.ones(1), "mean", include_self=False).sum(),
        [4.0, 0.0], [0.25, 0.0]),
    **{
        f"scatter_reduce, {kind}, written over": (
            lambda x, kind=kind: x.sqrt().scatter_reduce(
                0, torch.tensor([1]), torch.ones(1), kind, include_self=False
            ).sum(),
            [4.0, 0.0], [0.25, 0.0])
        for kind in ("sum", "mean", "prod", "amax", "amin")
    },
    "sparse_mask": (
        lambda x: x.sqrt()[None].sparse_mask(torch.tensor([[1.0, 0.0]]).to_sparse()).to_dense().sum(),
        [4.0, 0.0], [0.25, 0.0]),
    "nextafter of equal numbers": (
        lambda x: torch.nextafter(x.sqrt(), torch.tensor([3.0, 0.0])).sum(), [4.0, 0.0], [0.25, 0.0]),
    **{
        f"the triangle that {name} does not read": (
            lambda x, solve=solve: solve(x.sqrt().view(2, 2), torch.tensor([[1.0], [2.0]])).sum(),
            [4.0, 0.0, 1.0, 4.0], [-0.03125, 0.0, -0.125, -0.09375])
        for name, solve in (
            ("solve_triangular", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False)),
            ("triangular_solve", lambda a, b: torch.triangular_solve(b, a, upper=False)[0]),
        )
    },
    "a diagonal of ones": (
        lambda x: torch.linalg.solve_triangular(
            x.sqrt().view(2, 2), torch.tensor([[1.0], [2.0]]), upper=False, unitriangular=True).sum(),
        [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, -0.5, 0.0]),
    "a NaN bound of clamp": (
        lambda x: x.sqrt().clamp(min=torch.tensor([0.0, nan])).nansum(), [4.0, 0.0], [0.25, 0.0]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("name", FIXED)
def test_what_the_loss_ignores_stays_out_in_silence(name):
    loss, values, expected = FIXED[name]
    ours, plain, messages = gradients(loss, values)
    assert ours.tolist() == pytest.approx(expected) and not messages
    assert plain.isnan().any()
    kept = plain.isfinite()
    assert bits(ours[kept]) == bits(plain[kept])


BITS = {
    "a matrix product of -0.0": (
        lambda b: (torch.tensor([[-1.0, nan]]) @ b)[torch.tensor([[True, False]])].sum(), torch.ones(2, 2)),
    "a number that is filled in": (lambda v: (LEFT.masked_fill(LEFT > 0, v) * RIGHT).sum(), torch.tensor(1.5)),
    "a number that is filled in, on a slice": (lambda v: (filled(LEFT * 1, v) * RIGHT).sum(), torch.tensor(1.5)),
    "a number that a slice is multiplied by": (lambda v: (times(LEFT * 1, v) * RIGHT).sum(), torch.tensor(1.5)),
    "a row that a slice is multiplied by": (lambda v: (times(LEFT * 1, v) * RIGHT).sum(), torch.full((8,), 1.5)),
    "sgn, whose derivative stays 0 before an infinity": (
        lambda x: Steep.apply(x).sgn().sum() + x[:1].sum(), torch.zeros(2)),
    "eig": (lambda a: torch.where(a.sum() > -9, torch.linalg.eig(a).eigenvalues.real, 0.0).sum(), torch.eye(3) + 0.1),
}  # fmt: skip
LEFT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
RIGHT = torch.rand(8, 8, generator=torch.Generator().manual_seed(1))


class Steep(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 1)
    backward = staticmethod(lambda ctx, gradient: gradient * torch.tensor([inf, inf]))


def filled(y, value):
    y[:7].masked_fill_(y[:7].detach() > 0, value)
    return y


def times(y, value):
    y[:7].mul_(value)
    return y


@pytest.mark.parametrize("name", BITS)
def test_the_very_bits_the_sign_of_zero_included(name):
    function, values = BITS[name]
    x = values.clone().requires_grad_()
    (ours,) = ignoring.grad(function(x), x)
    (plain,) = torch.autograd.grad(function(x), x)
    kept = plain.isfinite()
    assert bits(ours[kept]) == bits(plain[kept]) and ours.stride() == plain.stride()


# Masks.


def test_a_mask_is_not_computed_in_half_precision():
    x = torch.rand(1, 1, 1024, 1024, dtype=torch.float16)
    x[0, 0, 0, 0] = 1
    x.requires_grad_()
    loss = F.avg_pool2d(x, 1024)[0, 0, 0, 0]
    (result,) = ignoring.grad(loss + 0 * torch.where(x < 0, x, 0).sum(), x, ignored="masked")
    assert result.get_mask().all()


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_of_a_softmax_those_count_that_share_an_entrys_sum(function, dim, each_way):
    x = (1000 * torch.arange(6.0)).reshape(2, 3).requires_grad_()  # most weights are 0, and so are most gradients
    (result,) = ignoring.grad(function(x, dim)[0, 1], x, ignored="masked")
    fibre = torch.zeros(2, 3, dtype=torch.bool)
    fibre.select(1 - dim % 2, 1 if dim == 0 else 0).fill_(True)
    assert result.get_mask().tolist() == fibre.tolist()
