"""Attention: the fused kernels keep no weights, so where they give NaN the weights are computed again from q and k."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, ignored_in, merge, plain, rule, wrapped


@rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def attention_backward(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of query, key and value; what a causal mask or -inf cuts off is not selected."""
    exact = op(plain(grad), *args, **kwargs)
    if ignored_in(grad) is None:
        return wrapped(exact)
    rows = grad.ignored.all(-1, keepdim=True)
    masks = [rows, *2 * [_groups(rows.all(-2, keepdim=True), exact[1].shape[1], Tensor.all)]]
    cheap = [Cotangent(value, mask.expand(value.shape)) for value, mask in zip(exact[:3], masks, strict=True)]
    if not any(bool(value.isnan().any()) for value in exact[:3]):
        return (*cheap, *wrapped(tuple(exact[3:])))
    named = {a.name: value for a, value in zip(op._schema.arguments[1:], args, strict=False)} | kwargs
    to_query, *shared = _careful(grad, _attention(named), named["dropout_p"])
    careful = (to_query, *(_groups(entries, exact[1].shape[1], torch.sum) for entries in shared))
    return (*merge(tuple(exact[:3]), careful), *wrapped(tuple(exact[3:])))


def _attention(named: dict[str, Any]) -> tuple[Tensor, ...]:
    """Query, key, value, scale, weights, and which pairs are cut off, in at least float32."""
    query, key, value = (named[name] for name in ("query", "key", "value"))
    wide = torch.promote_types(query.dtype, torch.float32)
    heads = query.shape[1]
    query, key, value = query.to(wide), _repeated(key.to(wide), heads), _repeated(value.to(wide), heads)
    scale = named.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.mT * scale
    cut = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    if named["is_causal"]:
        cut = torch.ones_like(cut).triu(1)
    bias = named.get("attn_mask", named.get("attn_bias"))
    if bias is not None:
        cut, scores = cut | (bias == -torch.inf), scores + bias
    logsumexp = named["logsumexp"][..., : query.shape[-2], None]
    weights = (scores - logsumexp).exp().masked_fill(cut, 0)
    return query, key, value, torch.tensor(scale), weights, cut, named["out"].to(wide)


def _careful(grad: Any, attention: tuple[Tensor, ...], dropout: float) -> tuple[Any, Any, Any]:
    if dropout:
        raise NotImplementedError("the entries that dropout kept are not known")
    query, key, value, scale, weights, cut, out = attention
    grad = grad.to(out.dtype)
    to_weights = torch.matmul(grad, value.mT) - torch.mul(grad, out).sum(-1, keepdim=True)
    to_scores = torch.mul(to_weights, weights)
    ignored = ignored_in(to_scores)
    cut = cut.expand(to_scores.shape)
    scores = Cotangent(plain(to_scores).masked_fill(cut, 0), cut if ignored is None else ignored | cut)
    to_query = torch.matmul(scores, key) * scale
    to_key = torch.matmul(scores.transpose(-2, -1), query) * scale
    return to_query, to_key, torch.matmul(weights.mT, grad)


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Keys and values of fewer heads serve several queries' heads each."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], 1)


def _groups(entries: Any, heads: int, reduce: Any) -> Any:
    """From the queries' heads back to the shared ones."""
    if entries.shape[1] == heads:
        return entries
    return reduce(entries.unflatten(1, (heads, entries.shape[1] // heads)), 2)
