"""Attention: the fused kernels keep no weights; backward computes them again, of what the loss ignored as well.

A query that the loss ignored, and a key that only such queries meet, have no part in the gradient. So they are taken
out before the kernel runs: elements of the batch by running it on the others, single queries and keys by harmless
numbers in their place. Only where that leaves a NaN is the kernel's work done step by step, from the weights.
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

# An attention mask is -inf where it cuts off; what it does harm to shows in the logsumexp. The output averages values.
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

# These may have sequences one behind the other, and memory behind the last that nobody writes to.
function("EfficientAttention FlashAttention", selects=True)

LARGE = 10_000
"""Entries from which on it pays to take elements of the batch out, rather than have zeros in their place."""

SHORT = 128
"""Keys up to which the kernel is as fast as to take elements of the batch out."""

FLASH = "aten::_flash_attention_backward"

COMMON_NAMES = {"grad_out": "grad", "grad_out_": "grad", "attn_mask": "bias", "attn_bias": "bias"}

PER_HEAD = ("grad", "query", "key", "value", "out")

TOKENS_FIRST = ("aten::_efficient_attention_backward", FLASH)
"""These have the tokens before the heads, and may have sequences of several lengths one behind the other."""


@functools.cache
def _names(op: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of an operator's arguments: its own, and the common ones."""
    own = tuple(argument.name for argument in op._schema.arguments)
    return own, tuple(COMMON_NAMES.get(name, name) for name in own)


@dataclass(frozen=True)
class Call:
    """One call of a fused derivative on plain tensors.

    `named` has its arguments by the names that most of the operators give them, and its tensors as batch × heads ×
    tokens × features, however the operator wants them.
    """

    op: Any
    named: dict[str, Any]

    @classmethod
    def of(cls, op: Any, args: Any, kwargs: Any) -> Call:
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
        return Call(self.op, self.named | others)

    def turned(self, tensor: Tensor) -> Tensor:
        """One of the operator's tensors as batch × heads × tokens × features."""
        if self.has_heads_first:
            return tensor
        return (tensor.unsqueeze(0) if tensor.dim() == 3 else tensor).transpose(1, 2)

    def turned_back(self, tensor: Tensor) -> Tensor:
        if self.has_heads_first:
            return tensor
        tensor = tensor.transpose(1, 2)
        return tensor.squeeze(0) if self.starts and self.op._schema.name == FLASH else tensor

    @property
    def has_heads_first(self) -> bool:
        return self.op._schema.name not in TOKENS_FIRST

    @property
    def starts(self) -> tuple[Tensor, Tensor] | None:
        """Where each sequence starts, in the queries and in the keys, if they stand one behind the other."""
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
    """The gradients of query, key, value and bias; what a causal mask or -inf cuts off is not selected."""
    call = Call.of(op, args, kwargs)
    mask = mask_of(args[0])
    results = _of_used_elements(call, None if mask is None else call.turned(mask))
    for number, result in enumerate(results[:3]):
        mask = None if result.mask is None else call.turned_back(result.mask)
        results[number] = Cotangent(call.turned_back(result.value), mask)
    return tuple(results)


def is_short_and_whole(node: Any) -> bool:
    """Whether each query attends to all keys, so few that a run of the kernel costs no more than to take some out."""
    query, key = node._saved_query, node._saved_key
    whole = not node._saved_is_causal and node._saved_attn_mask is None and query.shape[1] == key.shape[1]
    return whole and (key.shape[2] <= SHORT or query.numel() + key.numel() < LARGE)


def whole_masks(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries count, and which keys, where each attends to all."""
    queries = anywhere(mask, -1, keepdim=True)
    return queries, anywhere(queries, -2, keepdim=True)


def repair_attention(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> None:
    """Zeros where nothing is used; if that leaves a NaN, once more without what is not used, and then by the rule."""
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
    careful = op(grad, *kept, weights, node._saved_dropout_p, False, **options)
    if any_nan(careful):
        careful = unwrap(attention_backward(op, Cotangent(grad, mask), *saved, node._saved_dropout_p, False, **options))
    write_over(results, careful)


@transfer(
    "ScaledDotProductFlashAttentionForCpu",
    reads=("_raw_saved_query", "_raw_saved_key", "_raw_saved_attn_mask"),
    only_if=is_short_and_whole,
    repair=repair_attention,
    repair_reads=("_raw_saved_value", "_raw_saved_output", "_raw_saved_logsumexp"),
)
def _attention(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """A query mixes all keys, and a key goes to all queries."""
    if mask is None:
        return [None] * len(results)
    queries, keys = whole_masks(mask)
    return [
        None if result is None else counts.expand(result.shape)
        for counts, result in zip((queries, keys, keys), results, strict=True)
    ]


# Elements of the batch.


def _of_used_elements(call: Call, mask: Mask) -> list[Any]:
    """The gradients, from those elements of the batch alone that the loss uses."""
    rows = core(full(mask, call["grad"])).any(-1, keepdim=True)
    used = rows.flatten(1).any(1).expand(len(call["query"]))
    # What dropout drops depends on the size of the batch, and the gradient of a bias may be a sum over it.
    if mask is None or call["dropout_p"] or call.wants_bias or mask.numel() < LARGE or bool(used.all()):
        return _of_used_tokens(call, mask, rows)
    places = used.nonzero()[:, 0]
    if not len(places):
        return [Cotangent(torch.zeros_like(t), everywhere(False, t)) for t in map(call.__getitem__, PER_HEAD[1:4])]
    if len(places) * call["key"].shape[1] == 1:
        # PyTorch's threads take a head each; a single one they would share, and round otherwise.
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
    """Those elements in their places: where each comes from is given, and zeros are behind the last."""
    order = sorted(range(part.dim()), key=part.stride, reverse=True)
    back = sorted(range(part.dim()), key=order.__getitem__)
    batch, laid_out = order.index(0), part.permute(order)
    extended = torch.cat((laid_out, torch.zeros_like(laid_out.narrow(batch, 0, 1))), batch)
    return extended.index_select(batch, origin).permute(back)


# Queries and keys.


def _of_used_tokens(call: Call, mask: Mask, rows: Tensor) -> list[Any]:
    """The gradients; the kernel runs on what was saved if it is finite, or else without what is not used."""
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
    careful = _step_by_step(call, mask, cut)
    exact = call() if exact is None else exact
    return [*prefer_exact(exact[:3], careful[:3]), *_merged_bias(exact[3:], careful[3])]


def _is_finite(call: Call) -> bool:
    """Whether no NaN nor inf was given."""
    query, key, value = (total(call[name]) for name in ("query", "key", "value"))
    return is_number(query + key + value)


def _without(call: Call, queries: Tensor, keys: Tensor) -> Call:
    """The call with nothing of the queries and keys that don't count; exp(score - inf) is a weight of 0."""
    changed = {name: only(queries, call[name]) for name in ("query", "out")}
    changed |= {name: only(keys, call[name]) for name in ("key", "value")}
    # One number for each query, whatever dimensions the kernel gives it; some round the count up.
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
        if call.starts:  # what belongs to no sequence is memory that nobody wrote to
            value = value.masked_fill(~mask, 0)
        if not has_nan(value):
            results[number] = Cotangent(value, mask.expand(value.shape))
            continue
        results[number] = zero_ignored(value, mask)
        if has_nan(value):
            return None
    return results


def _cut_off(call: Call, mask: Mask) -> Tensor | None:
    """Which pairs of query and key are cut off. Where a NaN came through all the same, nothing was: it was used."""
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
    """The queries with an element that counts and is not finite."""
    used = out if mask is None else only(core(mask), out)
    return (used * 0).sum(-1, keepdim=True) != 0


def _packed(call: Call, *starts: Tensor) -> tuple[Tensor, Tensor | None]:
    """Which pairs are of two sequences, or of none; and which of one sequence a causal mask cuts off."""
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
    """From the weights, which are computed again in at least float32."""
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
    kept = kept.expand(cotangent.shape)
    return Cotangent(unwrap(cotangent).masked_fill(~kept, 0), both(kept, mask_of(cotangent)))


def _kept(call: Call) -> Tensor:
    """Which weights dropout kept: the kernel itself tells, for it draws by the same seed again.

    With queries and keys of zeros all weights are alike; a cotangent with rows of the identity then brings the weights
    of as many queries to light as there are features, one in each column of the gradient of the values.
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
    if not exact or exact[0] is None or not exact[0].numel():
        return exact
    extra = 4 - exact[0].dim()
    summed = [d for d in range(4) if d < extra or exact[0].shape[d - extra] != to_scores.shape[d]]
    total = to_scores.sum(summed, keepdim=True) if summed else to_scores
    return [prefer_exact(exact[0], total.reshape(exact[0].shape)), *wrap(exact[1:])]


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Keys and values of fewer heads serve several queries' heads each."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], 1)


def summed_to(heads: int, entries: Any, reduce: Any) -> Any:
    """From the queries' heads back to the shared ones."""
    if entries.shape[1] in (1, heads):
        return entries
    return reduce(entries.unflatten(1, (heads, entries.shape[1] // heads)), 2)
