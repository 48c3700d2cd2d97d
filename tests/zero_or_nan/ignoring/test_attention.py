"""Attention of each kernel, next to the same computation by softmax and products, in float64."""

from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from alone import assert_right
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from zero_or_nan import ignoring
from zero_or_nan.functions.families.attention import attention_backward
from zero_or_nan.ignoring import Cotangent


def by_hand(query, key, value, bias, scale=None, kept=1.0):
    """Attention by softmax and products, of tensors batch × heads × tokens × features. A mask is -inf in the bias."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (torch._safe_softmax(scores + bias, -1) * kept) @ value


def wanted(tensors, grad, used, bias, **rest):
    """The gradients of query, key, value and bias by hand, in float64. The loss uses some elements of the output."""
    leaves = [t.detach().double().requires_grad_() for t in (*tensors, bias)]
    return ignoring.grad((by_hand(*leaves, **rest) * grad).where(used, 0.0).sum(), leaves)


# The CPU's kernel, as users call it.


# Before 2.9, the kernel has as many heads of keys and values.
HEADS = [(1, 1), (4, 4), *([(4, 2), (6, 1)] if torch.__version__ >= (2, 9) else [])]


def sample(seed):
    """Query, key and value with and without poison, a mask or none, and the rows of the result that are used."""
    torch.manual_seed(seed)
    pick = torch.Generator().manual_seed(seed)

    def one_of(*choices):
        return choices[torch.randint(len(choices), (), generator=pick)]

    heads, shared = one_of(*HEADS)
    batch, tokens, others, features = one_of(2, 5), one_of(1, 7, 70), one_of(7, 70), one_of(4, 16, 33)
    shapes = [(batch, tokens, heads, features), *2 * [(batch, others, shared, features)]]
    clean = [torch.randn(shape).transpose(1, 2) for shape in shapes]  # as a layer makes them
    clean = clean if seed % 2 else [t.contiguous() for t in clean]
    kind = one_of("none", "causal", "bool", "bool", "-inf", "per head")
    mask = None
    if kind == "bool":
        mask = (torch.arange(others) < torch.randint(1, others + 1, (batch, 1))).view(batch, 1, 1, others)
        mask = mask.expand(batch, 1, tokens, others).clone()
        mask[0, 0, tokens // 2] = False
    elif kind != "none" and kind != "causal":
        mask = torch.randn(batch, heads if kind == "per head" else 1, tokens, others)
        mask = mask.masked_fill(torch.rand(mask.shape) < 0.3, -inf)
        mask[..., -1] = -inf
    poisoned = [t.clone() for t in clean]
    used = torch.ones(clean[0].shape, dtype=torch.bool)
    poison = one_of(nan, inf, 3e38)
    what = one_of("elements", "queries", "column", "ragged columns", "key", "value", "all")
    if what in ("elements", "all"):
        for t in poisoned:
            t[batch // 2 :] = poison
        used[batch // 2 :] = False
    if what in ("queries", "all"):
        poisoned[0][:, 0, -1] = poison
        used[:, 0, -1] = False
        if kind == "per head":
            mask[:, 0, -1] = nan
    if what in ("column", "all"):
        poisoned[2][..., 1] = poison
        used[..., 1] = False
    if what == "ragged columns":  # the first query uses the poison, and others don't
        poisoned[2][0, 0, 0, 1] = nan
        used[0, :, 1:, 1] = used[:, :, 0, 2] = False
    if what in ("key", "value"):  # all masks but causal ones cut it off, from queries that use it all the same
        poisoned[1 if what == "key" else 2][0, 0, -1] = nan
        used[-1] = False
    return clean, poisoned, mask, kind == "causal", used


@pytest.mark.parametrize("first", range(0, 48, 16))
def test_the_cpus_kernel(first):
    fixed = 0
    for seed in range(first, first + 16):
        clean, poisoned, mask, causal, used = sample(seed)
        grad = torch.randn(clean[0].shape)
        leaves = [t.detach().requires_grad_() for t in poisoned]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            shared = clean[0].shape[1] != clean[1].shape[1]
            out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=causal, enable_gqa=shared)
        loss = (out * grad).where(used, 0.0).sum()
        plain = torch.autograd.grad(loss, leaves, retain_graph=True)
        bias = torch.zeros(clean[0].shape[-2], clean[1].shape[-2])
        bias = bias.masked_fill(torch.ones_like(bias).triu(1) > 0, -inf) if causal else bias
        if mask is not None:
            bias = mask if mask.dtype is not torch.bool else torch.zeros(mask.shape).masked_fill(~mask, -inf)
        ours = ignoring.grad(loss, leaves)
        assert_right(ours, plain, wanted(poisoned, grad, used, bias)[:3], 1e-3)
        fixed += any(bool((a.isfinite() > b.isfinite()).any()) for a, b in zip(ours, plain, strict=True))
    assert fixed >= 3


def fused(kernel, **options):
    """Attention of the tokens to the tokens."""

    def attend(x, cut):
        x = x.unflatten(-1, (2, 2)).transpose(1, 2)
        with sdpa_kernel(kernel):
            out = F.scaled_dot_product_attention(x, x, x, **({"attn_mask": ~cut} | options))
        return out.transpose(1, 2).flatten(2)

    return attend


ONE_ANSWER = {
    "MATH": fused(SDPBackend.MATH),
    "MATH, is_causal": fused(SDPBackend.MATH, attn_mask=None, is_causal=True),
    "FLASH_ATTENTION": fused(SDPBackend.FLASH_ATTENTION),
    "MultiheadAttention": lambda x, cut: nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x, attn_mask=cut)[0],
}


@pytest.mark.parametrize("name", ONE_ANSWER)
def test_a_token_that_a_mask_cuts_off_is_used(name):
    """Its weight is a computed 0. The root of 0 has an infinite slope, and 0 times infinity is NaN."""
    torch.manual_seed(0)
    x = torch.rand(2, 5, 4) + 0.5
    x[0, -1, 1] = 0
    x.requires_grad_()
    cut = torch.ones(5, 5).triu(1) > 0 if "is_causal" in name else torch.arange(5).expand(5, 5) == 4
    out = ONE_ANSWER[name](x.sqrt(), cut)[:, :2]
    (undefined,) = ignoring.grad(out[0].sum(), x, retain_graph=True)
    assert (~undefined.isfinite()).nonzero().tolist() == [[0, 4, 1]]
    (fine,) = ignoring.grad(out[1].sum(), x)  # another sentence
    assert fine.isfinite().all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_several_threads_keep_the_bits():
    torch.manual_seed(0)
    leaves = [torch.randn(3, 4, tokens, 80).requires_grad_() for tokens in (65, 700, 700)]
    before, used = torch.get_num_threads(), [0, 2]
    torch.set_num_threads(2)
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = F.scaled_dot_product_attention(*leaves)[used].square().sum()
        plain = torch.autograd.grad(loss, leaves, retain_graph=True)
        gradients = ignoring.grad(loss, leaves, ignored="masked")
    finally:
        torch.set_num_threads(before)
    for mine, theirs in zip(gradients, plain, strict=True):
        assert torch.equal(mine.get_data(), theirs)
        assert mine.get_mask().flatten(1).any(1).tolist() == [True, False, True]


# Kernels of other devices, by their formula.

HEADS_FIRST = [f"_scaled_dot_product_{kind}attention{more}_backward" for kind, more in (
    ("cudnn_", ""), ("efficient_", ""), ("flash_", ""), ("fused_", "_overrideable")
)]  # fmt: skip
TOKENS_FIRST = ["_efficient_attention_backward", "_flash_attention_backward"]
WITHOUT_BIAS = ["_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"]
SEED = 5


class Kernel:
    """A fused derivative as its device computes it, in float32: with weights from logsumexp, and all multiplied.

    Dropout draws anew from the seed. Tokens of no sequence get what the memory held.
    """

    def __init__(self, name):
        self._schema = getattr(torch.ops.aten, name).default._schema
        self.name = name
        self.runs = 0

    def arguments(self, tensors, out, logsumexp, bias, causal, dropout, starts):
        """All but the gradient that matter, by the names of the schema."""
        query, key, value = tensors
        known = dict(
            query=query, key=key, value=value, out=out, logsumexp=logsumexp, attn_bias=bias, bias=bias,
            is_causal=causal, custom_mask_type=2 * int(causal), dropout_p=dropout, philox_seed=SEED, rng_state=SEED,
            grad_input_mask=[True] * 4, bias_requires_grad=bias is not None, cum_seq_q=starts, cum_seq_k=starts,
            cu_seqlens_q=starts, cu_seqlens_k=starts, scale=0.3,
        )  # fmt: skip
        return {a.name: known[a.name] for a in self._schema.arguments if a.name in known}

    def turned(self, t):
        """From batch × heads × tokens to this kernel's order, and back."""
        return t.transpose(1, 2) if self.name in TOKENS_FIRST else t

    def __call__(self, **given):
        self.runs += 1
        grad, starts, bias = (
            next((given[name] for name in names.split() if name in given), None)
            for names in ("grad_out grad_out_", "cu_seqlens_q cum_seq_q", "attn_bias bias")
        )
        flat, logsumexp = grad.dim() == 3, given["logsumexp"]
        shaped = grad, *(given[name] for name in ("query", "key", "value", "out"))
        grad, query, key, value, out = (self.turned(t.unsqueeze(0) if flat else t) for t in shaped)
        heads, shared = query.shape[1], key.shape[1]
        key, value = (t.repeat_interleave(heads // shared, 1) for t in (key, value))
        cut = cut_of(query, key, given.get("is_causal") or given.get("custom_mask_type"), starts)
        scores = (query @ key.mT * given["scale"] + (0 if bias is None else bias)).masked_fill(cut, -inf)
        if starts is not None and logsumexp.dim() == 3:  # for each sequence
            lengths = (starts[1:] - starts[:-1]).tolist()
            logsumexp = torch.cat([each[:, :length] for each, length in zip(logsumexp, lengths, strict=True)], -1)
            logsumexp = F.pad(logsumexp, (0, query.shape[-2] - logsumexp.shape[-1]))
        logsumexp = logsumexp.reshape(*query.shape[:2], -1)[..., : query.shape[-2], None]
        p = (scores - logsumexp).exp()
        kept = kept_of(p.shape, given["dropout_p"])
        to_value = (p * kept).mT @ grad
        to_scores = p * ((grad @ value.mT) * kept - (grad * out).sum(-1, keepdim=True))
        results = [to_scores @ key * given["scale"], to_scores.mT @ query * given["scale"], to_value]
        results[1:] = [t.unflatten(1, (shared, heads // shared)).sum(2) for t in results[1:]]
        if starts is not None:
            for t in results:
                t[..., starts[-1] :, :] = 7.0
        results = [self.turned(t).squeeze(0) if flat else self.turned(t) for t in results]
        return (*results, to_scores) if len(self._schema.returns) == 4 else tuple(results)


def kept_of(shape, dropout):
    generator = torch.Generator().manual_seed(SEED)
    return (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout)


def cut_of(query, key, causal, starts):
    tokens, others = query.shape[-2], key.shape[-2]
    cut = torch.zeros(tokens, others, dtype=torch.bool)
    if causal:
        cut |= torch.ones_like(cut).triu(1)
    if starts is not None:
        owner = torch.bucketize(torch.arange(tokens), starts, right=True)
        cut |= (owner[:, None] != owner) | (owner == len(starts))
    return cut


CASES = [
    (name, case)
    for name in (*HEADS_FIRST, *TOKENS_FIRST)
    for case in ("plain", "causal", "shared heads", "-inf", "packed", "packed, causal")
    if not (name in HEADS_FIRST and "packed" in case or name in WITHOUT_BIAS and case == "-inf")
]


@pytest.mark.parametrize(("poison", "dropout"), [(nan, 0.0), (3e38, 0.4)])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_another_devices_kernel(name, case, poison, dropout):
    packed, causal = "packed" in case, "causal" in case
    torch.manual_seed(0)
    kernel = Kernel(name)
    batch, tokens, features = 1 if packed else 3, 12, 5
    heads, shared = (4, 2) if case == "shared heads" else (2, 2)
    clean = [torch.randn(batch, n, tokens, features) for n in (heads, shared, shared)]
    grad = torch.randn(batch, heads, tokens, features)
    bias = None if name in WITHOUT_BIAS else torch.randn(batch, heads, tokens, tokens)
    starts = torch.tensor([0, 4, 9], dtype=torch.int32) if packed else None
    cut = cut_of(clean[0], clean[1], causal, starts).expand(batch, heads, -1, -1)
    used = torch.ones(batch, heads, tokens, features, dtype=torch.bool)
    poisoned = [t.clone() for t in clean]
    used[..., 3] = False
    poisoned[2][..., 3] = poison
    if case == "-inf":
        cut = cut.clone()
        cut[:, 0, 3] = True
        cut[:, :, :, 5] = True
        bias = bias.masked_fill(cut, -inf)
    if packed:  # what is behind the last sequence has a gradient of whatever the memory held
        used[:, :, 4:9] = used[:, :, 1] = False
        for t in poisoned:
            t[:, :, 4:9] = t[:, :, 9:] = poison
        poisoned[0][:, :, 1] = poison
    elif causal:
        used[:, :, 8:] = False
        poisoned[0][:, :, 8:] = poison
    else:
        used[0] = False
        used[1, 0, 2] = False
        poisoned[0][1, 0, 2] = poison
        for t in poisoned:
            t[0] = poison
        if bias is not None:
            bias[1, 0, 2] = nan
    grad = grad * used
    kept = kept_of((batch, heads, tokens, tokens), dropout)
    fine = torch.zeros(cut.shape) if bias is None else bias.nan_to_num(0.0, neginf=-inf)
    hidden = fine.masked_fill(cut, -inf)

    def saved(query, key, value):
        """What the forward kernel saves: inf for the logsumexp of a row without keys."""
        scores = query @ key.repeat_interleave(heads // shared, 1).mT * 0.3 + fine
        total = scores.masked_fill(cut, -inf).logsumexp(-1)
        out = by_hand(query, key, value.masked_fill(cut.all(-2).any(1, keepdim=True)[..., None], 0), hidden, 0.3, kept)
        return out, total.masked_fill(cut.all(-1), inf)

    # What is used was computed from what is clean.
    (out, logsumexp), (spoilt, total) = saved(*clean), saved(*poisoned)
    rows = used.any(-1)
    out, logsumexp = out.where(used, spoilt), logsumexp.where(rows, total)
    if "cudnn" in name:
        logsumexp = logsumexp.unsqueeze(-1)
    elif packed and name == "_flash_attention_backward":
        logsumexp = logsumexp.squeeze(0)
    elif packed:
        logsumexp = torch.cat([F.pad(logsumexp[..., a:b], (0, 8 - (b - a)), value=nan) for a, b in [(0, 4), (4, 9)]])
    elif "efficient" in name:  # the kernel rounds the count of queries up
        logsumexp = F.pad(logsumexp, (0, 4), value=nan)
    wants_bias = bias is not None and len(kernel._schema.returns) == 4
    reference = wanted(clean, grad, used, hidden, scale=0.3, kept=kept.double())

    def turned(t):
        return kernel.turned(t).squeeze(0) if packed and name == "_flash_attention_backward" else kernel.turned(t)

    given = kernel.arguments(map(turned, poisoned), turned(out), logsumexp, bias, causal, dropout, starts)
    exact = kernel(grad_out=turned(grad), **given)
    kernel.runs = 0
    mask = turned(used.expand(grad.shape))
    ours = attention_backward(kernel, Cotangent(turned(grad), mask), **given)
    count = 4 if wants_bias else 3
    for number, (mine, right, theirs) in enumerate(zip(ours[:count], reference, exact, strict=False)):
        right = turned(right) if number < 3 else right
        torch.testing.assert_close(mine.value.double(), right, rtol=1e-3, atol=1e-5)
        kept_bits = theirs.isfinite() & (theirs != 7.0)
        assert torch.equal(mine.value[kept_bits], theirs[kept_bits])
        assert mine.mask is None or (mine.value[~mine.mask] == 0).all()
    assert kernel.runs <= (2 if poison == 3e38 else 1)
    met = rows[..., None] if starts is None else rows[..., None] & (torch.arange(tokens) < 9)[:, None]
    assert torch.equal(ours[0].mask, turned(met.expand(grad.shape)))
    together = ~cut_of(clean[0], clean[1], False, starts)
    assert not wants_bias or torch.equal(ours[3].mask, met & together)
    assert not all(bool(t.isfinite().all()) for t in exact[:count]) or poison == 3e38
