"""Attention: the fused kernels keep no weights, so where they give NaN the weights are computed again from q and k."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, mask_of, merge, plain, wrapped
from ..masks import Mask, both, full
from ..registry import NotFollowed, rule


@rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def attention_backward(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of query, key and value; what a causal mask or -inf cuts off is not selected."""
    exact = op(plain(grad), *args, **kwargs)
    rest = wrapped(tuple(exact[3:]))
    named = {a.name: value for a, value in zip(op._schema.arguments[1:], args, strict=False)} | kwargs
    rows = full(mask_of(grad), grad).any(-1, keepdim=True)
    cut = _cut_off(named, mask_of(grad))
    if mask_of(grad) is None and cut is None:
        return wrapped(exact)
    keys = rows.any(-2, keepdim=True) if cut is None else (rows & ~cut).any(-2).unsqueeze(-1)
    masks = [rows, *2 * [_groups(keys, exact[1].shape[1], Tensor.any)]]
    cheap = [Cotangent(value, mask.expand(value.shape)) for value, mask in zip(exact[:3], masks, strict=True)]
    if not any(bool(value.isnan().any()) for value in exact[:3]):
        return (*cheap, *rest)
    if named["dropout_p"]:
        raise NotFollowed("does not tell which entries dropout kept")
    to_query, *shared = _careful(grad, named, cut)
    careful = (to_query, *(_groups(entries, exact[1].shape[1], torch.sum) for entries in shared))
    return (*merge(tuple(exact[:3]), careful), *rest)


def _cut_off(named: dict[str, Any], mask: Mask) -> Tensor | None:
    """Which pairs of query and key are cut off. Where a NaN came through all the same, nothing was: it was used."""
    query, key, out = named["query"], named["key"], named["out"]
    cut = None
    if named["is_causal"]:
        cut = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).triu(1)
    bias = named.get("attn_mask", named.get("attn_bias"))
    if bias is not None and bool((bias == -torch.inf).any()):
        cut = bias == -torch.inf if cut is None else cut | (bias == -torch.inf)
    if cut is None:
        return None
    fine = out.isfinite() if mask is None else out.isfinite() | ~mask
    result: Tensor = cut & fine.all(-1, keepdim=True)
    return result


def _careful(grad: Any, named: dict[str, Any], cut: Tensor | None) -> tuple[Any, Any, Any]:
    """Step by step, from the weights, which are computed again in at least float32."""
    query, key, value, out = (named[name] for name in ("query", "key", "value", "out"))
    wide = torch.promote_types(query.dtype, torch.float32)
    heads = query.shape[1]
    query, key, value, out = (
        query.to(wide),
        _repeated(key.to(wide), heads),
        _repeated(value.to(wide), heads),
        out.to(wide),
    )
    scale = torch.tensor(1 / math.sqrt(query.shape[-1]) if named.get("scale") is None else named["scale"])
    scores = query @ key.mT * scale
    bias = named.get("attn_mask", named.get("attn_bias"))
    weights = (scores if bias is None else scores + bias) - named["logsumexp"][..., : query.shape[-2], None]
    weights = weights.exp() if cut is None else weights.exp().masked_fill(cut, 0)
    grad = grad.to(wide)
    to_weights = torch.matmul(grad, value.mT) - torch.mul(grad, out).sum(-1, keepdim=True)
    to_scores = torch.mul(to_weights, weights)
    if cut is not None:
        mask = ~cut.expand(to_scores.shape)
        to_scores = Cotangent(plain(to_scores).masked_fill(~mask, 0), both(mask, mask_of(to_scores)))
    to_query = torch.matmul(to_scores, key) * scale
    to_key = torch.matmul(to_scores.transpose(-2, -1), query) * scale
    return to_query, to_key, torch.matmul(weights.mT, grad)


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Keys and values of fewer heads serve several queries' heads each."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], 1)


def _groups(entries: Any, heads: int, reduce: Any) -> Any:
    """From the queries' heads back to the shared ones."""
    if entries.shape[1] == heads:
        return entries
    return reduce(entries.unflatten(1, (heads, entries.shape[1] // heads)), 2)
