"""Attention: the fused kernels save no weights. Backward computes the weights again, also for ignored queries.

A key that a mask cuts off gets the weight 0. This is a computed number, and 0 times NaN is NaN. So a query that counts
uses all keys and values of its sequence, whatever the mask, `is_causal` or the window. Some kernels don't read some of
them. But PyTorch chooses the kernel, so the answer must not depend on it. All kernels get the answer of matrix products
and softmax.

Queries and keys mix their features, so their rows count as a whole. Column j of the output needs only column j of the
values, so a column of the values counts if a query of the sequence counts in this column.

Before the kernel runs, each query, key, or column of values that doesn't count is replaced by 0. If that leaves a NaN,
and queries count in different columns, the kernel runs for each kind of column.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import (
    Cotangent,
    NotFollowed,
    mask_of,
    prefer_exact,
    unwrap,
    wrap,
    zero_ignored,
)
from ...masks.mask import Mask, anywhere, core, full, only, reduced
from ...masks.numbers import any_nan
from ..conditions import ALWAYS, MODERATE, Condition
from ..graph import forward_class
from ..numerics import numerics
from ..registry import derivative, function, rule, transfer
from ..rewrites import advice

LOWEST = -1e4
"""A logsumexp below this is one of a query whose scores are all very low, as a mask of `finfo.min` makes them.

On a GPU, cuDNN's kernel can give NaN for such a query, also if no gradient arrives there (pytorch#196678).
"""
NOT_LOW = Condition(torch.aminmax, lambda dtype, low, high: low >= LOWEST and MODERATE.accepts(dtype, low, high))
OF_LOGSUMEXP = dict.fromkeys(("logsumexp", "log_sumexp"), NOT_LOW)
OF_RANDOM_STATE = dict.fromkeys(("philox_seed", "philox_offset", "rng_state", "unused"), ALWAYS)
"""A GPU saves where dropout began. Without dropout, nothing writes there, and any number may be in this memory."""

# An attention mask is -inf where it hides a key. Other numbers that do harm there show in the logsumexp. The output is
# an average of the values, so it needs no condition of its own.
ATTENTION: Any = dict(
    safe_if=MODERATE,
    safe_if_saved={"attn_bias": ALWAYS, "attn_mask": ALWAYS, "output": ALWAYS, **OF_LOGSUMEXP, **OF_RANDOM_STATE},
    scalars=("scale",),
)
function(
    """
    ScaledDotProductEfficientAttention ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu
    """,
    **ATTENTION,
)
function("ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable", since="2.13", **ATTENTION)

numerics(
    "scaled_dot_product_attention multi_head_attention_forward",
    ignores_infinity=True,
    draws="places",
    section="attention",
)
numerics("_transformer_encoder_layer_fwd _native_multi_head_attention", ignores_infinity=True)
advice(
    "undefined",
    "scaled_dot_product_attention",
    "# a row without any allowed element has no softmax:\n"
    "# allow the elements, and drop the row's result\n"
    "empty = ~allowed.any(-1, keepdim=True)\n"
    "y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | empty)\n"
    "y = y.masked_fill(empty, 0)",
    "attention#what-to-do",
)
advice(
    "undefined",
    "multi_head_attention_forward",
    "# a sample of nothing but padding has no softmax:\n"
    "# allow its elements, and drop its result\n"
    "empty = padding.all(-1)\n"
    "padding = padding & ~empty[:, None]\n"
    "y, _ = attention(q, k, v, key_padding_mask=padding)\n"
    "y = y.masked_fill(empty[:, None, None], 0)  # with batch_first=True",
    "attention#what-to-do",
)

# These may have sequences one after another, and memory after the last one that no kernel writes to.
function("EfficientAttention FlashAttention", selects=True)

FLASH = "aten::_flash_attention_backward"

COMMON_NAMES = {"grad_out": "grad", "grad_out_": "grad", "attn_mask": "bias", "attn_bias": "bias"}

PER_HEAD = ("grad", "query", "key", "value", "out")

TOKENS_FIRST = ("aten::_efficient_attention_backward", FLASH)
"""These have the tokens before the heads, and may have sequences of different lengths one after another."""


@functools.cache
def _names(op: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of an operator's arguments: its own names, and the names that most operators use."""
    own = tuple(argument.name for argument in op._schema.arguments)
    return own, tuple(COMMON_NAMES.get(name, name) for name in own)


@dataclass(frozen=True)
class Call:
    """One call of a fused derivative on plain tensors.

    `named` has its arguments by the names that most operators use. Its tensors have the dimensions batch × heads ×
    tokens × features, also if the operator has another order.
    """

    op: Any
    named: dict[str, Any]

    @classmethod
    def of(cls, op: Any, args: Any, kwargs: Any) -> Call:
        """The call with these arguments."""
        own, common = _names(op)
        given = dict(zip(own, unwrap(args), strict=False)) | unwrap(kwargs)
        call = cls(op, {name: given[own] for own, name in zip(own, common, strict=True) if own in given})
        return call if call.has_heads_first else call.with_(**{name: call.turned(call[name]) for name in PER_HEAD})

    def __getitem__(self, name: str) -> Any:
        return self.named.get(name)

    def __call__(self) -> list[Any]:
        """The gradients of query, key and value, and of the bias if it is wanted."""
        named = self.named
        if not self.has_heads_first:
            named = named | {name: self.turned_back(named[name]) for name in PER_HEAD}
        results = self.op(**{own: named[name] for own, name in zip(*_names(self.op), strict=True) if name in named})
        return [*map(self.turned, results[:3]), *(results[3:] if self.wants_bias else ())]

    def with_(self, **others: Any) -> Call:
        """The same call with other arguments."""
        return Call(self.op, self.named | others)

    def turned(self, tensor: Tensor) -> Tensor:
        """One of the operator's tensors as batch × heads × tokens × features."""
        if self.has_heads_first:
            return tensor
        return (tensor.unsqueeze(0) if tensor.dim() == 3 else tensor).transpose(1, 2)

    def turned_back(self, tensor: Tensor) -> Tensor:
        """A tensor of batch × heads × tokens × features in the operator's own order."""
        if self.has_heads_first:
            return tensor
        tensor = tensor.transpose(1, 2)
        return tensor.squeeze(0) if self.starts and self.op._schema.name == FLASH else tensor

    @property
    def has_heads_first(self) -> bool:
        return self.op._schema.name not in TOKENS_FIRST

    @property
    def starts(self) -> tuple[Tensor, Tensor] | None:
        """Where each sequence starts, in the queries and in the keys, if the sequences are packed one after another."""
        short = "cu_seqlens_" if "cu_seqlens_q" in self.named else "cum_seq_"
        queries, keys = self[f"{short}q"], self[f"{short}k"]
        return None if self.has_heads_first or queries is None or not queries.numel() else (queries, keys)

    @property
    def sequences(self) -> tuple[Tensor, Tensor, int] | None:
        """The number of each query's and each key's sequence, if they are packed, and a number that is none's."""
        if self.starts is None:
            return None
        numbers = []
        for start, name in zip(self.starts, ("query", "key"), strict=True):
            places = torch.arange(self[name].shape[-2], device=start.device, dtype=start.dtype)
            numbers.append(torch.bucketize(places, start, right=True))
        return numbers[0], numbers[1], len(self.starts[0])

    @property
    def wants_bias(self) -> bool:
        """Whether the gradient of the bias is computed."""
        return self["bias"] is not None and bool((self["grad_input_mask"] or [self["bias_requires_grad"]])[-1])


@rule(
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    since="2.13",
)
@rule(
    "_efficient_attention_backward",
    "_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def attention_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of query, key, value and bias."""
    call = Call.of(op, args, kwargs)
    mask = mask_of(args[0])
    results: list[Any] = _of_used_tokens(call, None if mask is None else call.turned(mask))
    for number, result in enumerate(results[:3]):
        mask = None if result.mask is None else call.turned_back(result.mask)
        results[number] = Cotangent(call.turned_back(result.value), mask)
    return (*results, *[None] * (len(op._schema.returns) - len(results)))


def counting(mask: Tensor, shared: int, sequences: tuple[Tensor, Tensor, int] | None = None) -> list[Tensor]:
    """Which queries, keys and values count: rows, rows, and columns.

    Args:
        mask: which elements of the output count.
        shared: the number of heads of the keys. Heads of the queries may share them.
        sequences: the number of each query's and each key's sequence, and a number that is none's. None means that
            each query uses all keys.
    """
    if sequences is None:
        values = anywhere(mask, -2, keepdim=True)
    else:
        of_query, of_key, none = sequences
        mask = mask & (of_query < none).unsqueeze(-1)
        count = mask.new_zeros((*mask.shape[:2], none + 1, mask.shape[3]), dtype=torch.float32)
        values = count.index_add(2, of_query, mask.float())[:, :, of_key] != 0
    values = of_shared_heads(values, shared)
    return [anywhere(mask, -1, keepdim=True), anywhere(values, -1, keepdim=True), values]


def of_shared_heads(mask: Tensor, shared: int) -> Tensor:
    """A mask for the heads of the keys, from a mask for the heads of the queries. Several of these may share a head."""
    if mask.shape[1] in (1, shared):
        return mask
    return torch.unflatten(mask, 1, (shared, -1)).any(2)


@transfer("ScaledDotProductFlashAttentionForCpu", reads=("_raw_saved_key",))
def _attention(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    """Each query uses all keys, and each key goes to all queries."""
    return counting(mask, node._saved_key.shape[1])


# Queries, keys and values.


def _of_used_tokens(call: Call, mask: Mask) -> list[Any]:
    """The gradients, by the kernel, without what doesn't count."""
    if mask is None and call.starts is None:
        return list(wrap(call()))
    mask = full(mask, call["grad"])
    results = _of_run(call, mask)
    return _by_columns(call, mask, results) if any_nan(unwrap(results)) else results


def _of_run(call: Call, mask: Tensor) -> list[Any]:
    """The gradients by one run of the kernel, without what doesn't count, and their masks."""
    sequences, bias = call.sequences, call["bias"]
    masks = counting(mask, call["key"].shape[1], sequences)
    values = _cleaned(call, mask, *masks)()
    if sequences is not None:  # no kernel has written to memory that belongs to no sequence
        values[:3] = [value.masked_fill(~counts, 0) for value, counts in zip(values, masks, strict=False)]
    if call.wants_bias:
        pairs = masks[0] if sequences is None else masks[0] & (sequences[0].unsqueeze(1) == sequences[1])
        masks.append(reduced(pairs.expand(*call["query"].shape[:3], call["key"].shape[-2]), bias.shape))
    return [zero_ignored(value, mask) for value, mask in zip(values, masks, strict=True)]


def _by_columns(call: Call, mask: Tensor, results: list[Any]) -> list[Any]:
    """The gradients if one run of the kernel leaves a NaN.

    The kernel mixes the columns in which a query counts with those in which only other queries count. For columns in
    which the same queries count, it is exact. The gradient is the sum over such kinds of columns.
    """
    small = core(mask)
    kinds, kind_of_column = torch.unique(small.flatten(0, 2), dim=1, return_inverse=True)
    parts = [small & (kind_of_column == number) for number in kinds.any(0).nonzero()[:, 0]]
    if len(parts) <= 1:
        return results
    runs = [_of_run(call.with_(grad=only(part, call["grad"])), part.expand(mask.shape)) for part in parts]
    sums = [functools.reduce(torch.add, each) for each in zip(*runs, strict=True)]
    return list(prefer_exact(unwrap(results), sums))


def _cleaned(call: Call, mask: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Call:
    """The call with 0 for what doesn't count. A weight of exp(score - inf) is 0."""
    changed = {"query": queries, "key": keys, "value": values, "out": core(mask)}
    changed = {name: only(counts, call[name]) for name, counts in changed.items()}
    if call["bias"] is not None and not bool((call["bias"] < torch.inf).all()):
        given = core(call["bias"])
        bias = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
        counts = reduced(queries, (*given.shape[:-1], 1))
        changed["bias"] = bias.copy_(given.where(counts, 0)).expand(call["bias"].shape)
    return call.with_(**changed, logsumexp=_without_weights(call, queries[..., 0]))


def _without_weights(call: Call, queries: Tensor) -> Tensor:
    """The logsumexp, with inf for the queries that don't count."""
    given: Tensor = call["logsumexp"]
    tokens = queries.shape[-1]
    if call.starts is not None and given.dim() == 3:  # sequences × heads × places in the sequence
        places = call.starts[0][:-1, None] + torch.arange(given.shape[-1], device=given.device)
        counts = queries[0][:, places.clamp(max=tokens - 1)].transpose(0, 1)
        return given.masked_fill(~counts, torch.inf)
    changed = given.clone()  # batch × heads × tokens. It may lack the batch, have a last dimension of 1, or be padded.
    each = changed.unsqueeze(0) if given.dim() == 2 else changed.squeeze(-1) if given.dim() == 4 else changed
    each[..., :tokens].masked_fill_(~queries, torch.inf)
    return changed


# Uncompiled flex attention: PyTorch's own derivative runs again, without what the loss ignored. It is a function in
# Python that multiplies whole matrices of scores, also for ignored queries. The function of the block mask selects
# among the scores, so a key counts if a query that counts may attend to it. But a value that the mask cuts off gets the
# weight 0, and 0 times NaN is NaN: each value counts in the columns in which a query counts, also in blocks that a
# kernel skips. Compiled flex attention can't be followed; a warning names the compiled region.


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
