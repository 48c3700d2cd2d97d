"""Uncompiled flex attention: PyTorch's own derivative runs again, without what the loss ignored.

The derivative is a function in Python that multiplies whole matrices of scores, also for ignored queries. It runs a
second time, with zeros in place of what doesn't count. The function of the block mask selects among the scores, so a
key counts if a query that counts may attend to it. But a value that the mask cuts off gets the weight 0, and 0 times
NaN is NaN: each value counts in the columns in which a query counts, also in blocks that a kernel skips. Compiled flex
attention can't be followed; a warning names the compiled region.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, unwrap, wrap
from ...masks.mask import anywhere, core, full, only
from ...masks.numbers import any_nan
from ..graph import forward_class
from ..registry import derivative
from .attention import of_shared_heads


@derivative("torch._higher_order_ops.flex_attention.FlexAttentionAutogradOp")
def flex_attention(node: Any, grads: Any) -> tuple[Any, ...]:
    """The gradients of query, key and value, and of tensors that the score function captured."""
    (query, key, value, out, logsumexp), rest = node.saved_tensors[:5], node.saved_tensors[5:]
    to_out, to_logsumexp = grads[:2]
    used = full(mask_of(to_out), unwrap(to_out))
    rows = anywhere(used, -1, keepdim=True) | full(mask_of(to_logsumexp), unwrap(to_logsumexp)).unsqueeze(-1)
    pairs = rows & _met(node, query, key)
    queries = pairs.any(-1, keepdim=True)
    keys, values = (
        of_shared_heads(mask.any(0, keepdim=True) if len(key) == 1 else mask, key.shape[1])
        for mask in (pairs.any(-2).unsqueeze(-1), anywhere(used, -2, keepdim=True))
    )
    cleaned = (
        only(queries, query),
        only(keys, key),
        only(values, value),
        only(core(used), out),
        logsumexp.masked_fill(~queries[..., 0], torch.inf),  # exp(score - inf) is a weight of 0
    )
    given = only(queries, unwrap(to_out)), unwrap(to_logsumexp).masked_fill(~queries[..., 0], 0)
    unused = [None] * (len(grads) - 2)  # newer releases also return the largest scores
    results = list(forward_class(node).backward(_Cleaned(node, (*cleaned, *rest)), *given, *unused))
    if any_nan(results):
        raise NotFollowed("a query that counts met NaN or inf")
    masks = [mask.expand(result.shape) for mask, result in zip((queries, keys, values), results, strict=False)]
    return (*map(Cotangent, results, masks), *wrap(results[3:]))


class _Cleaned:
    """A node with other saved tensors."""

    def __init__(self, node: Any, saved_tensors: tuple[Tensor, ...]) -> None:
        self._node = node
        self.saved_tensors = saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _met(node: Any, query: Tensor, key: Tensor) -> Tensor:
    """Which pairs of query and key the block mask allows."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch._higher_order_ops import utils
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    # After the integers of the block mask come the tensors that the functions captured: first those of the score
    # function, then those of the mask function.
    read = getattr(utils, "saved_values", None) or getattr(utils, "saved_tensors_and_symints", None)
    if read is None:
        raise NotFollowed("its mask can't be read in this release")
    saved: tuple[Any, ...] = read(node)
    last = max(number for number, value in enumerate(saved) if isinstance(value, int))
    captured = saved[last + 1 :][node._score_mod_other_buffers_len :]
    mask = _vmap_for_bhqkv(node._mask_graph, prefix=(), suffix=(None,) * len(captured))
    places = [torch.arange(size, device=query.device) for size in (*query.shape[:3], key.shape[-2])]
    with TransformGetItemToIndex():
        met: Tensor = mask(*places, *captured)
    return met
