"""Compiled regions: their backward graph is followed where they are contaminated, and no miss is silent."""

import random

import pytest
import torch
from regions import as_inductor, gradient, of_others, quiet_compiler
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NAN = float("nan")

pytestmark = quiet_compiler


def in_place(x):
    y = x.sqrt() * 1
    y[1:] = 0
    return y.sum()


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.where(x > 0, (x.sqrt()[:, None] @ torch.ones(1, 2)).sum(1).float(), 0.0).sum()


def broken(x):
    y = x.sqrt()
    torch._dynamo.graph_break()
    return torch.where(x > 0, y, 0.0).sum()


BATCH_NORM = torch.nn.BatchNorm1d(2).eval()

FOLLOWED = {
    "where": (lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), [1.0, 0.0, 4.0]),
    "slice": (lambda x: x.sqrt()[:1].sum(), [1.0, 0.0]),
    "index": (lambda x: x.sqrt()[[0, 2]].sum(), [1.0, 0.0, 4.0]),
    "cat": (lambda x: torch.cat([x.sqrt()[:1], x[1:]]).prod(), [1.0, 0.0]),
    "split": (lambda x: (x.sqrt().split(1)[0] + 1).sum(), [1.0, 0.0]),
    "max": (lambda x: x.sqrt().max(), [1.0, 0.0]),
    "relu": (lambda x: torch.where(x > 0, x.sqrt(), 0.0).relu().sum(), [1.0, 0.0]),
    "matrix product": (lambda x: (x.view(3, 1) @ torch.ones(1, 2))[[0, 2]].square().sum(), [1.0, NAN, 4.0]),
    "normalize": (lambda x: F.normalize(x.view(3, 1))[[0, 2]].sum(), [1.0, NAN, 4.0]),
    "BatchNorm": (lambda x: BATCH_NORM(x.view(2, 2).sqrt())[:1].sum(), [1.0, 4.0, 0.0, 0.0]),
    "cross_entropy of images": (
        lambda x: F.cross_entropy(x.view(1, 2, 1, 2), torch.tensor([[[0, -100]]])), [1.0, NAN, 2.0, NAN],
    ),
    "cross_entropy": (lambda x: F.cross_entropy(x.view(2, 2), torch.tensor([0, -100])), [1.0, 2.0, NAN, NAN]),
    "nll_loss beside another class": (
        lambda x: F.nll_loss(x.view(2, 2).log(), torch.tensor([0, -100])), [1.0, 0.0, 0.0, 0.0],
    ),
    "AMP": (under_autocast, [1.0, 0.0, 4.0]),
    "graph break": (broken, [1.0, 0.0, 4.0]),
    "embedding": (lambda x: F.embedding(torch.tensor([1, 1]), x.sqrt()[:, None]).sum(), [0.0, 4.0]),
    "reflection": (lambda x: F.pad(x.sqrt()[None], (1, 1), "reflect")[:, :1].sum(), [1.0, 4.0, 0.0]),
    "checkpoint": (
        lambda x: checkpoint(lambda z: torch.where(z > 0, z.sqrt(), 0.0), x, use_reentrant=False).sum(), [1.0, 0.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", as_inductor], ids=["aot_eager", "marked"])
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_region_is_followed(name, backend, request):
    if backend is as_inductor:
        request.getfixturevalue("marked")
    program, numbers = FOLLOWED[name]
    x = torch.tensor(numbers)
    wanted, _ = gradient(program, x)
    found, told = gradient(torch.compile(program, backend=backend), x)
    plain, _ = gradient(torch.compile(program, backend=backend), x, torch.autograd.backward)
    assert wanted.isfinite().all() and not told
    torch.testing.assert_close(found, wanted)
    assert torch.equal(found[plain.isfinite()], plain[plain.isfinite()])


class LikeWhere(torch.autograd.Function):
    """Its backward is that of a `where`, and its zeros are a convention."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient, 0.0)


class Clipped(LikeWhere):
    """The same, and its forward function selects."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > -1, x, 0.0)


class LikeSlice(torch.autograd.Function):
    """Its backward is that of a slice, and its zeros are a convention."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        found = torch.zeros_like(gradient)
        found[:1] = gradient[:1]
        return found


USED = {
    "the same where, of the user": (
        lambda x: (lambda y: (torch.where(y > 0, y, 0.0) + LikeWhere.apply(y)).sum())(x.sqrt()), [1.0, 0.0],
    ),
    "the same slice, of the user": (
        lambda x: (lambda y: y[:1].sum() + LikeSlice.apply(y).sum())(x.sqrt()), [1.0, 0.0],
    ),
    "LPPool": (
        lambda x: F.lp_pool1d(x.sqrt().view(1, 1, -1), 2, 2).sum(), [0.0, 0.0, 1.0, 2.0],
    ),
    "pow": (lambda x: (x.sqrt() ** 0).sum() + x.sum(), [0.0, 1.0]),
    "relu beside clamp": (
        lambda x: (lambda y: y.relu().sum() + y.clamp(min=0).sum())(x.log()), [2.0, NAN],
    ),
    "std": (lambda x: x.sqrt().std(), [0.0, 0.0]),
    "sign beside a part": (lambda x: torch.cat([x.sqrt().sign()[:1], x[1:]]).sum(), [0.0, 1.0]),
    "clamp beside the same condition": (
        lambda x: (lambda y: torch.where(y >= 0, 1.0, 2.0).sum() + y.clamp(min=0).sum())(x.log()), [2.0, NAN],
    ),
    "nll_loss with a weight of 0": (
        lambda x: F.nll_loss(x.view(2, 2).log(), torch.tensor([0, 1]), torch.tensor([0.0, 1.0])), [0.0, 1.0, 1.0, 2.0],
    ),
    "a function of the user": (lambda x: Clipped.apply(x.sqrt()).sum(), [0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize(
    "backend",
    ["aot_eager", "aot_eager_decomp_partition", as_inductor],
    ids=["aot_eager", "decomposed", "marked"],
)
@pytest.mark.parametrize("name", USED)
def test_what_the_loss_uses_stays_nan(name, backend, request):
    if backend is as_inductor:
        request.getfixturevalue("marked")
    program, numbers = USED[name]
    x = torch.tensor(numbers)
    plain, _ = gradient(program, x, torch.autograd.backward)
    found, _ = gradient(torch.compile(program, backend=backend), x)
    uncompiled, _ = gradient(program, x)
    assert not plain.isfinite().all()
    assert torch.equal(found.isfinite() & ~uncompiled.isfinite(), torch.zeros(len(x), dtype=torch.bool))


NOT_FOLLOWED = {
    "a write into a view": (in_place, [1.0, 0.0]),
    "a derivative of ours": (lambda x: x.sqrt().cumprod(0)[:1].sum(), [1.0, 0.0]),
    "a comparison that was saved": (lambda x: x.sqrt().amax(), [1.0, 0.0]),
    "a norm that selects": (lambda x: torch.linalg.vector_norm(x.sqrt(), float("inf")), [1.0, 0.0]),
    "a product with 0 that PyTorch puts in": (lambda x: F.softshrink(x.sqrt()).sum(), [1.0, 0.0]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_is_not_followed_warns(name, backend):
    program, numbers = NOT_FOLLOWED[name]
    found, told = gradient(torch.compile(program, backend=backend), torch.tensor(numbers))
    assert found[0].isfinite() and (found[1].isfinite() or len(told) == 1 and "CompiledFunction" in told[0])


LEFT_OUT = {
    "a result of its own": (
        lambda x: (x.sqrt(), x.sqrt().sign()), lambda roots, signs: roots[:1].sum() + signs.sum(),
    ),
    "a part of the same result": (
        lambda x: (torch.cat([x.sqrt() * 2, x.sqrt().sign()]),), lambda both: both[[0, 2, 3]].sum(),
    ),
}  # fmt: skip
"""Programs, and their losses. All use the sign of a root, and none the second root otherwise."""


@pytest.mark.parametrize("backend", [as_inductor, of_others], ids=["of a backend that hides", "of others"])
@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_zero_that_the_compiler_leaves_out_still_counts(name, is_marked, backend, request):
    """The zero is the derivative of `sign`, and is added to a cotangent that is ignored."""
    if is_marked:
        request.getfixturevalue("marked")
    program, loss = LEFT_OUT[name]
    compiled = torch.compile(program, backend=backend)
    found, told = gradient(lambda x: loss(*compiled(x)), torch.tensor([1.0, 0.0]))
    assert found[1].isnan() and ("ignoring.follow_compiled()" in told[0]) is not is_marked


def test_marks_outlast_the_compilers_cache(marked, inductor):
    factor = 2 + random.SystemRandom().random()  # nothing is in the cache yet; other tests seed `random`

    def program(x):
        return torch.where(x > 0, x.sqrt() * factor, 0.0).sum() + x.sqrt()[:1].sum()

    for hits in (0, 2):
        torch.compiler.reset()
        counters.clear()
        found, told = gradient(torch.compile(program), torch.tensor([1.0, 0.0, 4.0]))
        assert not told and counters["inductor"]["fxgraph_cache_hit"] == hits
        torch.testing.assert_close(found, torch.tensor([(factor + 1) / 2, 0, factor / 4]))
