"""Flex attention, uncompiled, next to the same attention written out in float64 without the poison."""

import math
import warnings
from math import inf, nan

import pytest
import torch
from alone import assert_fixed
from torch.nn.attention import flex_attention as flex

from zero_or_nan import ignoring

BATCH, HEADS, TOKENS, FEATURES = 3, 4, 24, 8


def causal(b, h, i, j):
    return i >= j


def everywhere(b, h, i, j):
    return i >= 0


def sloped(score, b, h, i, j):
    return score + 0.1 * (j - i)


LENGTHS = torch.tensor([24, 20, 7])


def padded(b, h, i, j):
    return j < LENGTHS[b]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """PyTorch refuses gradients there, where nothing is gained by it; its dense formula runs all the same."""
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None, raising=False)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


def attend(tensors, mask, score):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = flex.create_block_mask(mask, BATCH, HEADS, TOKENS, TOKENS, device="cpu")
        return flex.flex_attention(*tensors, block_mask=blocks, score_mod=score, enable_gqa=True)


def written_out(tensors, mask, score):
    query, key, value = tensors
    key, value = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (key, value))
    b, h, i, j = torch.meshgrid(*map(torch.arange, (BATCH, HEADS, TOKENS, TOKENS)), indexing="ij")
    scores = query @ key.mT / math.sqrt(FEATURES)
    scores = scores if score is None else score(scores, b, h, i, j)
    return scores.masked_fill(~mask(b, h, i, j), -inf).softmax(-1) @ value


@pytest.mark.parametrize(
    ("mask", "score", "shared", "poison"),
    [
        (causal, None, 4, inf),
        (causal, sloped, 2, nan),
        (everywhere, lambda score, *at: 5 * torch.tanh(score / 5), 4, nan),
        (everywhere, lambda score, *at: score + 200, 4, 3e38),  # its exponential overflows
        (padded, sloped, 2, nan),
    ],
)
def test_what_the_loss_ignored_has_no_part(mask, score, shared, poison):
    torch.manual_seed(0)
    clean = [torch.randn(BATCH, heads, TOKENS, FEATURES) for heads in (HEADS, shared, shared)]
    poisoned = [t.clone() for t in clean]
    used = torch.ones(BATCH, HEADS, TOKENS, FEATURES, dtype=torch.bool)
    poisoned[2][..., 5] = poison
    used[..., 5] = False
    poisoned[0][:, 1, 3] = poison
    used[:, 1, 3] = False
    for t in poisoned:
        t[1] = poison
    used[1] = False
    if mask is causal:
        used[:, :, 20:] = False
        for t in poisoned[:2]:
            t[:, :, 20:] = poison
    if mask is padded:
        poisoned[1][2, :, 7:] = poison
    # The dense formula multiplies values by weights of 0: forward gets that right only of finite ones.
    out = attend(poisoned, mask, score)
    used = used & (out == attend(clean, mask, score))
    assert used.any()
    function, right = (lambda *tensors, by=by: by(tensors, mask, score) for by in (attend, written_out))
    plain = assert_fixed(function, poisoned, clean, used, 1e-3, 1e-5, right)
    assert poison == 3e38 or not all(bool(t.isfinite().all()) for t in plain)


@pytest.mark.parametrize("which", [1, 2], ids=["key", "value"])
def test_a_value_that_the_mask_cuts_off_is_used_but_its_key_is_not(which):
    """The mask selects among the scores, but the value's weight is a computed 0."""
    torch.manual_seed(0)
    leaves = [torch.rand(BATCH, HEADS, TOKENS, FEATURES) + 0.5 for _ in range(3)]
    leaves[which][0, 0, -1, 1] = 0
    leaves = [t.requires_grad_() for t in leaves]
    out = attend([t.sqrt() if number == which else t for number, t in enumerate(leaves)], causal, None)
    ours = ignoring.grad(out[:, :, :5].sum(), leaves)
    assert [int(t.isnan().sum()) for t in ours] == [0, 0, which - 1]


def test_a_used_query_that_met_nan_is_named():
    torch.manual_seed(0)
    tensors = [torch.randn(BATCH, HEADS, TOKENS, FEATURES) for _ in range(3)]
    tensors[1][0, 0, 0] = nan
    loss = attend([t.requires_grad_() for t in tensors], everywhere, None)[:, :, :5].sum()
    with pytest.warns(UserWarning, match="FlexAttentionAutogradOp"):
        ours = ignoring.grad(loss, tensors)
    assert ours[0][0, 0, :5].isnan().all()
