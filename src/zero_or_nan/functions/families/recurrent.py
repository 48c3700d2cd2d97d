"""Recurrent nets: packed sequences, one step in a kernel, one layer in a kernel, and all layers in a kernel.

If the derivative of a layer gives NaN, its kernel runs again without the ignored steps. A sequence does not influence
other sequences, nor a step the steps before it. If that does not help, the derivative of an LSTM layer is computed step
by step, back through time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, nothing, prefer_exact, step_of, unwrap, wrap
from ...masks.mask import Mask, all_count, anywhere, only
from ...masks.numbers import any_nan
from ..conditions import ALWAYS, MODERATE
from ..graph import function_of
from ..registry import derivative, function, rule

function("ThnnFusedGruCell ThnnFusedLstmCell", safe_if=MODERATE)
function("MkldnnRnnLayer", safe_if=MODERATE, safe_if_saved={"result3": ALWAYS})  # result3 is the kernel's workspace
# result3 is the kernel's reserve, in bytes. result4 holds all weights, one after another.
function(
    "CudnnRnn MiopenRnn",
    safe_if=MODERATE,
    safe_if_saved={"result3": ALWAYS, "result4": ALWAYS, "dropout_state": ALWAYS},
)

# Packed sequences of different lengths: step 0 of all sequences, then step 1, and so on. Padding is never used.


@derivative("PackPaddedSequence", selects=True, safe_if=ALWAYS)
def pack_padded_sequence(node: Any, grads: Any) -> tuple[Any]:
    """Each element of the pack goes back to its step and sequence."""
    step, sequence = (place.to(grads[0].device) for place in places(node._saved_result1))
    places_there = (sequence, step) if node._saved_batch_first else (step, sequence)
    return (grads[0].new_zeros(node._saved_input_sym_sizes).index_put(places_there, grads[0]),)


def places(lasting: Tensor) -> tuple[Tensor, Tensor]:
    """The step and the sequence of each element of a pack. `lasting` has the number of sequences at each step."""
    step = torch.arange(len(lasting), device="cpu").repeat_interleave(lasting)
    return step, torch.arange(len(step), device="cpu") - (lasting.cumsum(0) - lasting)[step]


# One step of an LSTM or a GRU, as GPUs compute it: elementwise, from the gates that the kernel has saved.


@rule("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    op: Any, to_hidden: Any, to_cell: Any, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> Any:
    """The gradients of the four gates, of the previous cell state, and of the bias."""
    exact = op(unwrap(to_hidden), unwrap(to_cell), before, after, gates, has_bias)
    to_hidden, to_cell = (nothing(after) if grad is None else grad for grad in (to_hidden, to_cell))
    to_gates, to_before = _back_through_step(to_hidden, to_cell, before, after.tanh(), gates.chunk(4, -1))
    return prefer_exact(exact, (to_gates, to_before, to_gates.sum(0) if has_bias else None))


def _back_through_step(to_hidden: Any, to_cell: Any, before: Tensor, squashed: Tensor, gates: Any) -> tuple[Any, Any]:
    """The gradients of an LSTM's gates and of its previous cell state. `squashed` is the tanh of the next one."""
    in_gate, forget_gate, candidate, out_gate = gates
    through = to_hidden * out_gate * (1 - squashed * squashed) + to_cell
    to_in = through * candidate * (1 - in_gate) * in_gate
    to_forget = through * before * (1 - forget_gate) * forget_gate
    to_candidate = through * in_gate * (1 - candidate * candidate)
    to_out = to_hidden * squashed * (1 - out_gate) * out_gate
    return torch.cat([to_in, to_forget, to_candidate, to_out], -1), through * forget_gate


@rule("_thnn_fused_gru_cell_backward")
def gru_cell_backward(op: Any, to_hidden: Any, saved: Tensor, has_bias: bool) -> Any:
    """The gradients of the gates' input parts, of their state parts, of the previous state, and of both biases."""
    exact = op(unwrap(to_hidden), saved, has_bias)
    reset, update, candidate, before, from_state = saved.chunk(5, -1)
    to_update = to_hidden * (before - candidate) * (1 - update) * update
    to_candidate = to_hidden * (1 - update) * (1 - candidate * candidate)
    to_reset = to_candidate * from_state * (1 - reset) * reset
    of_input = torch.cat([to_reset, to_update, to_candidate], -1)
    of_state = torch.cat([to_reset, to_update, to_candidate * reset], -1)
    biases = (of_input.sum(0), of_state.sum(0)) if has_bias else (None, None)
    return prefer_exact(exact, (of_input, of_state, to_hidden * update, *biases))


# What both kinds of kernels share.

_GRADS = ("grad_output", "grad_hy", "grad_cy")


def _by_name(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by the names in the operator's schema."""
    return {**dict(zip([argument.name for argument in op._schema.arguments], args, strict=False)), **kwargs}


def _reached(named: dict[str, Any]) -> Tensor | None:
    """Which steps (rows) of which sequences (columns) the cotangents reach; None for all."""
    output, *ends = masks = [mask_of(named[name]) for name in _GRADS]
    if any(mask is None and named[name] is not None for name, mask in zip(_GRADS, masks, strict=True)):
        return None
    used, saved = None if output is None else anywhere(output, -1), named["input"]
    if named["batch_sizes"]:
        flat, sizes = used, (len(named["batch_sizes"]), named["hx"].shape[1])
        used = torch.zeros(sizes, dtype=torch.bool, device=saved.device)
        if flat is not None:
            used[_packed_at(named)] = flat
    elif used is None:
        used = torch.zeros(saved.shape[:2], dtype=torch.bool, device=saved.device)
    if named["batch_first"] and not named["batch_sizes"]:
        used = used.t()
    found = _back_in_time(used, ends, named.get("reverse", False))
    return anywhere(found, 0).expand(found.shape) if named["bidirectional"] else found


def _back_in_time(used: Tensor, ends: Sequence[Mask], reverse: bool = False) -> Tensor:
    """For each sequence (a column), the used steps and all steps before them. If an end is used, all steps."""
    steps = used.clone() if reverse else used.flip(0)
    for end in ends:
        if end is not None:
            steps[0] |= anywhere(end.reshape(-1, steps.shape[1], end.shape[-1]), (0, -1))
    steps = steps.cummax(0).values
    return steps if reverse else steps.flip(0)


def _masked(value: Any, mask: Tensor) -> Any:
    return None if value is None else Cotangent(value, mask.expand(value.shape))


# A layer in one kernel, in one direction.

_LSTM = 2
"""PyTorch's number of the mode LSTM."""

_SAVED = ("output", "hy_", "cy_", "workspace")
_OF_SEQUENCES = (0, 5, 6)
"""The results that belong to sequences: for the input, the first hidden and the first cell state."""


@rule("mkldnn_rnn_layer_backward")
def lstm_layer_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """By the kernel, without the ignored steps, or else back through time."""
    named = _by_name(op, args, kwargs)
    # A call computes one direction of one layer, and its input has the steps first.
    counts = _reached(named | {"batch_sizes": None, "batch_first": False, "bidirectional": False})
    if counts is None:
        return wrap(op(*unwrap(args), **kwargs))
    is_lstm, weights_alone = named["mode"] == _LSTM, _is_for_weights_alone(args)
    if is_lstm and _has_lost_sequences(named, counts):
        rerun = _without(op, named, counts, weights_alone)
        if not any_nan(rerun):
            return _with_masks(rerun, counts)
        del rerun
    exact = op(*unwrap(args), **kwargs)
    if not any_nan(exact):
        return _with_masks(exact, counts)
    if not is_lstm:
        raise NotFollowed("can be followed only for an LSTM")
    rerun = exact if all_count(counts) else _without(op, named, counts, weights_alone)
    masked = _through_time(named) if any_nan(rerun) else _with_masks(rerun, counts)
    pairs = zip(exact, masked)  # noqa: B905
    return tuple(value if value is None else prefer_exact(value, c.reshape(value.shape)) for value, c in pairs)


def _has_lost_sequences(named: dict[str, Any], counts: Tensor) -> bool:
    """True if a sequence ends ignored, in a hidden state that is NaN everywhere.

    Plain PyTorch's gradient is then NaN for all of this sequence and for all weights, so there are no bits to keep.
    """
    end = named["hy_"].reshape(counts.shape[1], -1)
    return bool((end.isnan().all(-1) & counts[0 if named["reverse"] else -1].logical_not()).any())


def _is_for_weights_alone(args: Sequence[Any]) -> bool:
    """True if only the gradients of weights are needed."""
    step = step_of(args)
    if step is None or function_of(step.node.name()) != "MkldnnRnnLayer":
        return False
    return all(step.node.next_functions[number][0] is None for number in _OF_SEQUENCES)


def _without(op: Any, named: dict[str, Any], kept: Tensor, weights_alone: bool) -> tuple[Any, ...]:
    """Run forward and backward once more, with 0 for the steps that are not kept.

    If only weights need gradients, sequences without a kept step are left out. Otherwise the batch keeps its size,
    because the kernel may add up in another order for a smaller batch.
    """
    given, sequences = unwrap(named), kept.any(0)
    rows = sequences.nonzero().squeeze(1)
    if weights_alone and len(rows):
        kept, sequences = kept[:, rows], sequences[rows]
        for name in ("input", "hx_", "cx_tmp", *_GRADS):
            if given[name] is not None:
                given[name] = given[name].index_select(-2, rows)
    given["input"] = only(kept.unsqueeze(-1), given["input"]).contiguous()
    for name in ("hx_", "cx_tmp"):
        given[name] = only(sequences.unsqueeze(-1), given[name]).contiguous()
    options = ("reverse", "batch_sizes", "mode", "hidden_size", "num_layers", "has_biases", "bidirectional",
               "batch_first", "train")  # fmt: skip
    tensors = ("input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp")
    with torch.enable_grad():  # otherwise the kernel saves nothing for its derivative
        given["input"].requires_grad_()
        results = torch.ops.aten.mkldnn_rnn_layer(*(given[name] for name in (*tensors, *options)))
    given["input"] = given["input"].detach()
    given |= {name: result.detach() for name, result in zip(_SAVED, results, strict=True)}
    rerun = list(op(**given))
    if weights_alone:
        for number, name in zip(_OF_SEQUENCES, ("input", "hx_", "cx_tmp"), strict=True):
            rerun[number] = rerun[number].new_zeros(()).expand(named[name].shape)
    return tuple(rerun)


def _with_masks(values: Sequence[Any], counts: Tensor) -> tuple[Any, ...]:
    """The results with masks, from the steps that count. All elements of a weight count if any step does."""
    of_steps, of_sequences, of_weights = counts.unsqueeze(-1), counts.any(0).unsqueeze(-1), counts.any()
    masks = {number: of_sequences for number in _OF_SEQUENCES} | {0: of_steps}
    return tuple(_masked(value, masks.get(number, of_weights)) for number, value in enumerate(values))


def _through_time(named: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients, one step after the other, from the last step to the first."""
    inputs, output = named["input"], named["output"]
    to_gates, to_state = named["weight1"], named["weight2"]
    steps = list(range(len(inputs)))[:: -1 if named["reverse"] else 1]
    hidden, cell = (named[name].reshape(inputs.shape[1], -1) for name in ("hx_", "cx_tmp"))
    saved = []
    for step in steps:
        gates = inputs[step] @ to_gates.mT + hidden @ to_state.mT
        if named["has_biases"]:
            gates = gates + named["weight3"] + named["weight4"]
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, -1)
        gates = in_gate.sigmoid(), forget_gate.sigmoid(), candidate.tanh(), out_gate.sigmoid()
        after = gates[1] * cell + gates[0] * gates[2]
        saved.append((hidden, cell, after.tanh(), gates))
        hidden, cell = output[step], after

    none = nothing(cell)
    to_output, to_hidden, to_cell = (none if named[name] is None else named[name] for name in _GRADS)
    to_hidden, to_cell = to_hidden.reshape(cell.shape), to_cell.reshape(cell.shape)
    rows: dict[int, Any] = {}
    for step, (_, *known) in zip(steps[::-1], saved[::-1], strict=True):
        arriving = to_hidden if to_output is none else to_output.select(0, step) + to_hidden
        rows[step], to_cell = _back_through_step(arriving, to_cell, *known)
        to_hidden = torch.mm(rows[step], to_state)
    all_rows = torch.cat([rows[step] for step in range(len(inputs))])
    states: Any = dict(zip(steps, (hidden for hidden, *_ in saved), strict=True))
    all_states = torch.cat([states[step] for step in range(len(inputs))])
    to_bias = all_rows.sum(0)
    return (
        torch.mm(all_rows, to_gates).reshape(inputs.shape),
        torch.mm(all_rows.t(), inputs.flatten(0, 1)),
        torch.mm(all_rows.t(), all_states),
        to_bias,
        to_bias,
        to_hidden,
        to_cell,
    )


# All layers in one kernel, as on GPUs. Only the kernel can read what its forward run saved. So the forward run is also
# repeated, with 0 for ignored steps.


@rule("_cudnn_rnn_backward", "miopen_rnn_backward")
def rnn_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of the input, of the first hidden and cell states, and a list with those of the weights."""
    named = _by_name(op, args, kwargs)
    counts, given = _reached(named), unwrap(named)
    exact = op(**given | {"reserve": given["reserve"].clone()})  # the kernel writes into it
    if counts is None:
        return wrap(exact)
    if not _has_nan(exact):
        return _with_masks_of_all(exact, counts, given)
    if given["train"] and given["dropout"] and given["num_layers"] > 1:
        raise NotFollowed("has dropout between its layers, which would drop others now")
    rerun = exact if all_count(counts) else _without_in_all(op, given, counts)
    if _has_nan(rerun) and _has_parts(named):
        raise NotFollowed("mixes what counts of a step with what is ignored")
    return prefer_exact(exact, _with_masks_of_all(rerun, counts, given))


def _has_nan(results: Any) -> bool:
    return any_nan(results[:3]) or any_nan(results[3])


def _has_parts(named: dict[str, Any]) -> bool:
    """True if a part of a step, or of a last state, counts and another part is ignored. NaN may be in either part."""
    masks = ((mask_of(named[name]), dims) for name, dims in zip(_GRADS, (-1, (0, -1), (0, -1)), strict=True))
    return any(mask is not None and bool((mask != anywhere(mask, dims, True)).any()) for mask, dims in masks)


def _packed_at(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The step and the sequence of each element of a packed input."""
    return tuple(place.to(given["hx"].device) for place in places(torch.tensor(given["batch_sizes"], device="cpu")))


def _of_input(counts: Tensor, given: dict[str, Any]) -> Tensor:
    """The mask in the order of the input, with a dimension for its features."""
    if given["batch_sizes"]:
        counts = counts[_packed_at(given)]
    elif given["batch_first"]:
        counts = counts.t()
    return counts.unsqueeze(-1)


def _without_in_all(op: Any, given: dict[str, Any], counts: Tensor) -> Any:
    """Run forward and backward once more, with 0 for the steps that the cotangents don't reach."""
    states = {name: given[name] for name in ("hx", "cx") if given[name] is not None}
    sequences = anywhere(counts, 0).unsqueeze(-1)
    given = given | {name: only(sequences, state) for name, state in states.items()}
    given["input"] = only(_of_input(counts, given), given["input"])
    forward = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_backward")).default
    results = forward(**{argument.name: given[argument.name] for argument in forward._schema.arguments})
    return op(**given | {"output": results[0], "reserve": results[3]})


def _with_masks_of_all(results: Any, counts: Tensor, given: dict[str, Any]) -> Any:
    """The results with masks, from the steps that count. All elements of a weight count if any step does."""
    sequences = anywhere(counts, 0).unsqueeze(-1)
    masks = _of_input(counts, given), sequences, sequences
    *of_sequences, weights = results
    return (*map(_masked, of_sequences, masks), [_masked(value, anywhere(counts)) for value in weights])
