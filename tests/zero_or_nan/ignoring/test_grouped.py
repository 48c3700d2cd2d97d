"""The grouped matrix product, next to one product for each expert in float64, on the used rows alone."""

from math import inf, nan

import pytest
import torch

from zero_or_nan import ignoring
from zero_or_nan.functions.families.grouped import grouped_product


def has_a_kernel():
    """Whether this release has the grouped product with a derivative, on the processor too."""
    if not hasattr(torch._C._functions, "GroupedMmBackward0"):
        return False
    try:
        torch._grouped_mm(torch.ones(16, 16), torch.ones(1, 16, 16), offs=torch.tensor([16], dtype=torch.int32))
    except NotImplementedError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_a_kernel(), reason="PyTorch has no grouped product with a derivative")

ENDS = torch.tensor([3, 3, 10], dtype=torch.int32)
SHAPES = {
    "rows": ((16, 8), (3, 8, 16)),
    "columns": ((3, 16, 8), (8, 16)),
    "summed": ((8, 16), (16, 24)),
    "all": ((3, 4, 8), (3, 8, 16)),
}


def grouped(a, b, form):
    return torch._grouped_mm(a, b, offs=None if form == "all" else ENDS)


def one_by_one(a, b, form):
    """What is behind the last end is in no product, and 0 in the result."""
    if form == "all":
        return a @ b
    groups = [slice(start, end) for start, end in zip([0, *ENDS.tolist()[:-1]], ENDS.tolist(), strict=True)]
    if form == "summed":
        return torch.stack([a[:, group] @ b[group] for group in groups])
    if form == "rows":
        found = torch.cat([a[group] @ b[i] for i, group in enumerate(groups)])
        return torch.cat([found, torch.zeros(len(a) - len(found), found.shape[1])])
    found = torch.cat([a[i] @ b[:, group] for i, group in enumerate(groups)], 1)
    return torch.cat([found, torch.zeros(len(found), b.shape[1] - found.shape[1])], 1)


def dirty(*shapes):
    """Memory that is free for the next results, full of NaN."""
    for _ in range(3):
        held = [torch.full(shape, nan, dtype=dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]
    del held


def spoilt(t, form, which, poison):
    """The tensor with poison where no expert looks."""
    t = t.clone()
    if form == "rows" and which == 0:
        t[ENDS[-1] :] = poison
    elif form == "columns" and which == 1:
        t[:, ENDS[-1] :] = poison
    elif form == "summed":
        (t.mT if which == 0 else t)[ENDS[-1] :] = poison
    return t


@pytest.mark.parametrize(("dtype", "poison"), [(torch.float32, inf), (torch.bfloat16, nan)], ids=str)
@pytest.mark.parametrize("form", SHAPES)
def test_the_tail_of_the_buffer_is_no_gradient(form, poison, dtype):
    torch.manual_seed(0)
    clean = [torch.randn(shape).to(dtype) for shape in SHAPES[form]]
    leaves = [spoilt(t, form, which, poison).requires_grad_() for which, t in enumerate(clean)]
    out = grouped(*leaves, form)
    right = [t.double().requires_grad_() for t in clean]
    reference = one_by_one(*right, form)
    weights = torch.rand(out.shape)
    if form == "rows":
        used = slice(0, 9)  # one row of the last expert's is ignored
    elif form == "columns":
        used = (slice(None), slice(0, 9))
    else:
        used = ...
    if form == "rows":
        leaves[0].data[9] = poison
    wanted = torch.autograd.grad((reference * weights)[used].sum(), right)
    loss = (out.float() * weights)[used].sum()
    dirty(*SHAPES[form], out.shape)
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    dirty(*SHAPES[form], out.shape)
    ours = ignoring.grad(loss, leaves)
    for which, (mine, theirs, exact) in enumerate(zip(ours, plain, wanted, strict=True)):
        torch.testing.assert_close(mine.double(), exact, rtol=5e-2, atol=5e-2 if dtype is torch.bfloat16 else 1e-5)
        written = spoilt(torch.ones(mine.shape), form, which, 0.0) != 0
        same = theirs.isfinite() & written
        assert torch.equal(mine[same], theirs[same])
        assert (mine[~written] == 0).all()


@pytest.mark.parametrize("form", SHAPES)
def test_what_is_used_and_meets_nan_stays_nan(form):
    torch.manual_seed(0)
    factors = [torch.randn(shape) for shape in SHAPES[form]]
    saved = factors[1]
    saved[..., 0, 0] = nan
    mask = torch.ones(factors[0].shape, dtype=torch.bool)
    mask[..., :2, :] = False
    found = grouped(ignoring.Cotangent(factors[0] * mask, mask), saved, form)
    exact = one_by_one((factors[0] * mask).double(), saved.double().nan_to_num(0), form)
    met = one_by_one(mask.float(), saved.isnan().float(), form) > 0
    assert met.any()
    assert torch.equal(found.value.isnan(), met)
    torch.testing.assert_close(found.value[~met].double(), exact[~met], rtol=1e-4, atol=1e-5)


def test_a_product_of_two_cotangents_is_named():
    two = ignoring.Cotangent(torch.ones(3, 4, 4), torch.ones(3, 4, 4, dtype=torch.bool))
    with pytest.raises(ignoring.NotFollowed, match="two cotangents"):
        grouped_product(torch.ops.aten._grouped_mm.default, two, two)
