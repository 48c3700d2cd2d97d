"""Attention: the fused kernels save no weights. Backward computes the weights again, also for ignored queries.

A query that the loss ignored, and a key that only such queries meet, have no part in the gradient. So both are removed
before the kernel runs. For whole elements of the batch, the kernel runs on the other elements. A single query or key is
replaced by 0. Only if that leaves a NaN, the kernel's computation is done step by step, from the weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conditions import ALWAYS, MODERATE
from ..cotangent import Cotangent, clear_lost_rows, mask_of, prefer_exact, unwrap, wrap, write_over, zero_ignored
from ..failures import NotFollowed
from ..finite import any_nan, has_nan, is_number, total
from ..masks import Mask, anywhere, both, core, everywhere, full, only, reduced
from ..registry import function, rule, transfer
from .products import taken

# An attention mask is -inf where it hides a key. Other numbers that do harm there show in the logsumexp. The output is
# an average of the values, so it needs no condition of its own.
ATTENTION: Any = dict(
    selects=True,
    safe_if=MODERATE,
    safe_if_saved={"attn_bias": ALWAYS, "attn_mask": ALWAYS, "output": ALWAYS},
    scalars=("scale",),
)
function(
    """
    ScaledDotProductEfficientAttention ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu
    """,
    **ATTENTION,
)
function("ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable", since="2.13", **ATTENTION)

# These may have sequences one after another, and memory after the last one that no kernel writes to.
function("EfficientAttention FlashAttention", selects=True)

WORTH_LEAVING_OUT = 10_000
"""From this number of elements on, it pays to take ignored elements of the batch out, rather than set them to 0."""

SHORT = 128
"""Up to this number of keys, running the kernel on all elements is as fast as taking some of them out."""

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
        """The gradients of query, key and value, and of the bias if the operator gives one."""
        named = self.named
        if not self.has_heads_first:
            named = named | {name: self.turned_back(named[name]) for name in PER_HEAD}
        results = self.op(**{own: named[name] for own, name in zip(*_names(self.op), strict=True) if name in named})
        return [*map(self.turned, results[:3]), *results[3:]]

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
    def wants_bias(self) -> bool:
        """Whether the gradient of the bias is computed."""
        return bool((self["grad_input_mask"] or [self["bias_requires_grad"]])[-1])


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
    """The gradients of query, key, value and bias. A pair that a causal mask or -inf cuts off is not selected."""
    call = Call.of(op, args, kwargs)
    mask = mask_of(args[0])
    results = _of_used_elements(call, None if mask is None else call.turned(mask))
    for number, result in enumerate(results[:3]):
        mask = None if result.mask is None else call.turned_back(result.mask)
        results[number] = Cotangent(call.turned_back(result.value), mask)
    return tuple(results)


def is_short_and_whole(node: Any) -> bool:
    """True if each query attends to all keys, and these are so few that a run of the kernel on all of them is cheap."""
    query, key = node._saved_query, node._saved_key
    whole = not node._saved_is_causal and node._saved_attn_mask is None and query.shape[1] == key.shape[1]
    return whole and (key.shape[2] <= SHORT or query.numel() + key.numel() < WORTH_LEAVING_OUT)


def whole_masks(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries and which keys count, if each query attends to all keys."""
    queries = anywhere(mask, -1, keepdim=True)
    return queries, anywhere(queries, -2, keepdim=True)


def repair_attention(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> None:
    """Write 0 over ignored rows. If that leaves a NaN, run the kernel without ignored tokens, and then the rule."""
    queries, keys = whole_masks(mask)
    is_left = False
    for result, counts in zip(results, (queries, keys, keys), strict=True):
        is_left |= result is not None and clear_lost_rows(result, counts, -1)
    if not is_left:
        return
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    saved = [getattr(node, f"_saved_{name}") for name in ("query", "key", "value", "output", "logsumexp")]
    options = dict(attn_mask=None, scale=node._saved_scale)
    kept = [only(used, each) for used, each in zip((queries, keys, keys, queries), saved, strict=False)]
    weights = saved[4].masked_fill(queries[..., 0].logical_not(), torch.inf)  # exp(score - inf) is a weight of 0
    repaired = op(grad, *kept, weights, node._saved_dropout_p, False, **options)
    if any_nan(repaired):
        repaired = unwrap(
            attention_backward(op, Cotangent(grad, mask), *saved, node._saved_dropout_p, False, **options)
        )
    write_over(results, repaired)


@transfer(
    "ScaledDotProductFlashAttentionForCpu",
    reads=("_raw_saved_query", "_raw_saved_key", "_raw_saved_attn_mask"),
    only_if=is_short_and_whole,
    repair=repair_attention,
    repair_reads=("_raw_saved_value", "_raw_saved_output", "_raw_saved_logsumexp"),
)
def _attention(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """Each query reads all keys, and each key goes to all queries."""
    if mask is None:
        return [None] * len(results)
    queries, keys = whole_masks(mask)
    return [
        None if result is None else counts.expand(result.shape)
        for counts, result in zip((queries, keys, keys), results, strict=True)
    ]


# Elements of the batch.


def _of_used_elements(call: Call, mask: Mask) -> list[Any]:
    """The gradients, computed from the elements of the batch that the loss uses."""
    rows = core(full(mask, call["grad"])).any(-1, keepdim=True)
    used = rows.flatten(1).any(1).expand(len(call["query"]))
    # What dropout drops depends on the size of the batch, and the gradient of a bias may be a sum over the batch.
    if mask is None or call["dropout_p"] or call.wants_bias or mask.numel() < WORTH_LEAVING_OUT or bool(used.all()):
        return _of_used_tokens(call, mask, rows)
    places = used.nonzero()[:, 0]
    if not len(places):
        return [Cotangent(torch.zeros_like(t), everywhere(False, t)) for t in map(call.__getitem__, PER_HEAD[1:4])]
    if len(places) * call["key"].shape[1] == 1:
        # Each of PyTorch's threads takes a head. A single head is shared by all threads, which rounds differently.
        return _of_used_tokens(call, mask, rows)
    per_element = [name for name in (*PER_HEAD, "logsumexp", "bias") if _has_elements(call[name], len(used))]
    part = call.with_(**{name: taken(call[name], places) for name in per_element})
    results = _of_used_tokens(part, taken(core(mask), places).expand(part["grad"].shape), rows[places])
    origin = (used.cumsum(0) - 1).masked_fill(~used, len(places))
    for number, result in enumerate(results[:3]):
        value, found = _put(result.value, origin), _put(core(full(result.mask, result.value)), origin)
        results[number] = Cotangent(value, found.expand(value.shape))
    return results


def _has_elements(tensor: Tensor | None, count: int) -> bool:
    return tensor is not None and tensor.dim() > 2 and tensor.shape[0] == count


def _put(part: Tensor, origin: Tensor) -> Tensor:
    """The elements of a part of the batch, and 0 for the others. `origin` has the index of each element in the part."""
    order = sorted(range(part.dim()), key=part.stride, reverse=True)
    back = sorted(range(part.dim()), key=order.__getitem__)
    batch, laid_out = order.index(0), part.permute(order)
    extended = torch.cat((laid_out, torch.zeros_like(laid_out.narrow(batch, 0, 1))), batch)
    return extended.index_select(batch, origin).permute(back)


# Queries and keys.


def _of_used_tokens(call: Call, mask: Mask, rows: Tensor) -> list[Any]:
    """The gradients, by the kernel: on the saved tensors if they are finite, then without ignored queries and keys.

    If both leave a NaN, they are computed step by step.
    """
    cut = _cut_off(call, mask)
    if mask is None and cut is None:
        return list(wrap(call()))
    pairs = rows if cut is None else rows & ~cut
    queries = rows if cut is None else pairs.any(-1, keepdim=True)
    keys = summed_to(call["key"].shape[1], pairs.any(-2).unsqueeze(-1), Tensor.any)
    masks = [queries, keys, keys]
    exact = call() if _is_finite(call) else None
    results = None if exact is None else _settled(call, exact, masks, pairs)
    if results is None:
        results = _settled(call, _without(call, queries, keys)(), masks, pairs)
    if results is not None:
        return results
    masked = _step_by_step(call, mask, cut)
    exact = call() if exact is None else exact
    return [*prefer_exact(exact[:3], masked[:3]), *_merged_bias(exact[3:], masked[3])]


def _is_finite(call: Call) -> bool:
    """True if query, key and value are finite."""
    query, key, value = (total(call[name]) for name in ("query", "key", "value"))
    return is_number(query + key + value)


def _without(call: Call, queries: Tensor, keys: Tensor) -> Call:
    """The call with 0 for the queries and keys that don't count. A weight of exp(score - inf) is 0."""
    changed = {name: only(queries, call[name]) for name in ("query", "out")}
    changed |= {name: only(keys, call[name]) for name in ("key", "value")}
    # The logsumexp has a number for each query, in dimensions that depend on the kernel. Some pad the queries.
    given, tokens = call["logsumexp"], call["query"].shape[-2]
    each = given.unsqueeze(0) if given.dim() == 2 else given.squeeze(-1) if given.dim() == 4 else given
    if each.shape[2] >= tokens:
        each = each.clone()
        each[..., :tokens].masked_fill_(~queries[..., 0], torch.inf)
        changed["logsumexp"] = each.view(given.shape)
    return call.with_(**changed)


def _settled(call: Call, values: list[Any], masks: list[Tensor], pairs: Tensor) -> list[Any] | None:
    """The gradients with their masks, unless an element that counts is NaN."""
    bias = call["bias"] if call.wants_bias else None
    if bias is not None:
        every = pairs.expand(*call["query"].shape[:3], call["key"].shape[-2])
        masks = [*masks, reduced(every, bias.shape)]
    results: list[Any] = [*values[:3], *wrap(values[3:])]
    for number, mask in enumerate(masks):
        value = values[number]
        if call.starts:  # no kernel has written to memory that belongs to no sequence
            value = value.masked_fill(~mask, 0)
        if not has_nan(value):
            results[number] = Cotangent(value, mask.expand(value.shape))
            continue
        results[number] = zero_ignored(value, mask)
        if has_nan(value):
            return None
    return results


def _cut_off(call: Call, mask: Mask) -> Tensor | None:
    """Which pairs of query and key are cut off. If a used output is not finite, none of its query's pairs is."""
    key = call["key"]
    tokens, others = call["query"].shape[-2], key.shape[-2]
    cut = None
    if call["is_causal"] or call["custom_mask_type"]:
        ends_together = call["custom_mask_type"] == 2 or call.op._schema.name == FLASH
        place = torch.arange(tokens, device=key.device) + (others - tokens if ends_together else 0)
        cut = torch.arange(others, device=key.device) > place.unsqueeze(1)
    of_others = None
    if call.starts is not None:
        of_others, cut = _packed(call, *call.starts)
    bias = call["bias"]
    if bias is not None:
        infinite = bias == -torch.inf
        if bool(infinite.any()):
            cut = infinite if cut is None else cut | infinite
    if cut is not None:
        came_through = _came_through(call["out"], mask)
        cut = cut & ~came_through if bool(came_through.any()) else cut
    if of_others is not None:
        cut = of_others if cut is None else of_others | cut
    return cut


def _came_through(out: Tensor, mask: Mask) -> Tensor:
    """True for each query whose output has an element that counts and is not finite."""
    used = out if mask is None else only(core(mask), out)
    return (used * 0).sum(-1, keepdim=True) != 0


def _packed(call: Call, *starts: Tensor) -> tuple[Tensor, Tensor | None]:
    """Which pairs do not belong to one sequence, and which pairs of one sequence a causal mask cuts off."""
    places, owners, behind = [], [], []
    for start, name in zip(starts, ("query", "key"), strict=True):
        place = torch.arange(call[name].shape[-2], device=start.device)
        owner = torch.searchsorted(start, place.to(start.dtype), right=True) - 1
        last = (owner + 1).clamp(max=len(start) - 1)
        places.append(place - start[owner])
        behind.append(start[last] - place)
        owners.append(owner.masked_fill(owner == len(start) - 1, -1 if name == "query" else -2))
    of_others = owners[0].unsqueeze(1) != owners[1]
    if not (call["is_causal"] or call["custom_mask_type"]):
        return of_others, None
    if call["custom_mask_type"] == 1:
        return of_others, places[1] > places[0].unsqueeze(1)
    return of_others, behind[1] < behind[0].unsqueeze(1)


# Step by step.


def _step_by_step(call: Call, mask: Mask, cut: Tensor | None) -> list[Any]:
    """The gradients from the weights, which are computed again in at least float32."""
    windows = call["window_size_left"], call["window_size_right"], call["window_size"]
    if any(window is not None and window > 0 for window in windows) or windows[0] == 0:
        raise NotFollowed("attends within a window")
    query, key, value, out, grad = (call[name] for name in ("query", "key", "value", "out", "grad"))
    wide = torch.promote_types(query.dtype, torch.float32)
    heads, shared = query.shape[1], key.shape[1]
    query, out = query.to(wide), out.to(wide)
    key, value = _repeated(key.to(wide), heads), _repeated(value.to(wide), heads)
    scale = torch.tensor(1 / math.sqrt(query.shape[-1]) if call["scale"] is None else call["scale"])
    scores = query @ key.mT * scale
    scores = scores if call["bias"] is None else scores + call["bias"].to(wide)
    weights = (scores if cut is None else scores.masked_fill(cut, -torch.inf)).softmax(-1)
    weights = weights if cut is None else weights.masked_fill(cut, 0)
    given = Cotangent(grad.to(wide), mask)
    to_weights: Any = torch.matmul(given, value.mT)
    thinned = weights
    if call["dropout_p"]:
        kept = _kept(call)
        factor = torch.tensor(1 / (1 - call["dropout_p"]) if call["dropout_p"] < 1 else 0.0)
        thinned = (weights * factor).masked_fill(~kept, 0)
        to_weights = torch.mul(_selected(to_weights, kept), factor)
    to_scores: Any = torch.mul(to_weights - torch.mul(given, out).sum(-1, keepdim=True), weights)
    if cut is not None:
        to_scores = _selected(to_scores, ~cut)
    to_query = torch.matmul(to_scores, key) * scale
    to_key = torch.matmul(to_scores.transpose(-2, -1), query) * scale
    to_value = torch.matmul(thinned.mT, given)
    return [to_query, *(summed_to(shared, part, torch.sum) for part in (to_key, to_value)), to_scores]


def _selected(cotangent: Any, kept: Tensor) -> Cotangent:
    """The cotangent with 0, ignored, where `kept` is False."""
    kept = kept.expand(cotangent.shape)
    return Cotangent(unwrap(cotangent).masked_fill(~kept, 0), both(kept, mask_of(cotangent)))


def _kept(call: Call) -> Tensor:
    """Which weights dropout kept. The kernel shows this, because it draws again with the same seed.

    With queries and keys of zeros, all weights are equal. If the cotangent is an identity for as many queries as there
    are features, each column of the gradient of the values has the weights of one query.
    """
    query, value = call["query"], call["value"]
    batch, heads, tokens = query.shape[:3]
    shape = (batch, heads, call["key"].shape[-2])
    blank = call.with_(
        query=torch.zeros_like(query),
        key=query.new_zeros((*shape, query.shape[-1])),
        value=query.new_zeros((*shape, value.shape[-1])),
        out=torch.zeros_like(call["out"]),
        logsumexp=torch.zeros_like(call["logsumexp"]),
        bias=None if call["bias"] is None else torch.zeros_like(call["bias"]),
    )
    found = []
    for first in range(0, tokens, value.shape[-1]):
        count = min(value.shape[-1], tokens - first)
        probe = torch.zeros_like(call["grad"])
        probe[..., first : first + count, :count] = torch.eye(count, dtype=probe.dtype, device=probe.device)
        found.append(blank.with_(grad=probe)()[2][..., :count].mT != 0)
    return torch.cat(found, -2)


def _merged_bias(exact: list[Any], to_scores: Cotangent) -> list[Any]:
    """The gradient of the bias, if there is one: a sum over the scores."""
    if not exact or exact[0] is None or not exact[0].numel():
        return exact
    extra = 4 - exact[0].dim()
    summed = [d for d in range(4) if d < extra or exact[0].shape[d - extra] != to_scores.shape[d]]
    total = to_scores.sum(summed, keepdim=True) if summed else to_scores
    return [prefer_exact(exact[0], total.reshape(exact[0].shape)), *wrap(exact[1:])]


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Keys or values for each head of the queries: several heads may share one."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], 1)


def summed_to(heads: int, entries: Any, reduce: Any) -> Any:
    """Reduce from the heads of the queries to the heads that they share."""
    if entries.shape[1] in (1, heads):
        return entries
    return reduce(entries.unflatten(1, (heads, entries.shape[1] // heads)), 2)
