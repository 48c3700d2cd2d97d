"""A recurrent layer that runs as one kernel. If its derivative gives NaN, it runs again without the ignored steps.

If that does not help, the derivative is computed step by step, back through time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, step_of, unwrap, wrap
from ...masks.mask import all_count, anywhere, only
from ...masks.numbers import any_nan
from ..conditions import ALWAYS, MODERATE
from ..graph import function_of
from ..registry import function, rule

# result3 is the kernel's workspace, in bytes.
function("MkldnnRnnLayer", safe_if=MODERATE, safe_if_saved={"result3": ALWAYS})

_LSTM = 2
"""PyTorch's number of the mode LSTM."""

_GRADS = ("grad_output", "grad_hy", "grad_cy")
_SAVED = ("output", "hy_", "cy_", "workspace")
_OF_SEQUENCES = (0, 5, 6)
"""The results that belong to sequences: for the input, the first hidden and the first cell state."""


@rule("mkldnn_rnn_layer_backward")
def lstm_layer_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """One layer in one direction. A sequence does not influence other sequences, nor a step the steps before it."""
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    counts = _reached(named)
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


def _reached(named: dict[str, Any]) -> Tensor | None:
    """Which steps of which sequences the cotangents reach; None for all."""
    output, *states = given = [mask_of(named[name]) for name in _GRADS]
    if any(mask is None and named[name] is not None for name, mask in zip(_GRADS, given, strict=True)):
        return None
    steps, batch = named["input"].shape[:2]
    used = torch.zeros(steps, batch, dtype=torch.bool) if output is None else anywhere(output, -1)
    ends = [anywhere(mask, -1).reshape(batch) for mask in states if mask is not None]
    return back_in_time(used, ends, named["reverse"])


def back_in_time(used: Tensor, ends: Sequence[Tensor], reverse: bool = False) -> Tensor:
    """For each sequence (a column), the used steps and all steps before them. If an end is used, all steps."""
    steps = used.clone() if reverse else used.flip(0)
    for end in ends:
        steps[0] |= end
    steps = steps.cummax(0).values
    return steps if reverse else steps.flip(0)


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
    return tuple(
        None if value is None else Cotangent(value, masks.get(number, of_weights).expand(value.shape))
        for number, value in enumerate(values)
    )


def _through_time(named: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients, one step after the other, from the last step to the first."""
    grad_output, grad_hy, grad_cy = (named[name] for name in _GRADS)
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
        in_gate, forget_gate, candidate, out_gate = (
            in_gate.sigmoid(),
            forget_gate.sigmoid(),
            candidate.tanh(),
            out_gate.sigmoid(),
        )
        saved.append((hidden, cell, in_gate, forget_gate, candidate, out_gate))
        cell = forget_gate * cell + in_gate * candidate
        hidden = output[step]

    to_hidden, to_cell = (None if g is None else g.reshape(inputs.shape[1], -1) for g in (grad_hy, grad_cy))
    rows: dict[int, Any] = {}
    for step, (_, before, in_gate, forget_gate, candidate, out_gate) in zip(steps[::-1], saved[::-1], strict=True):
        squashed = (forget_gate * before + in_gate * candidate).tanh()
        arriving = _total(None if grad_output is None else grad_output.select(0, step), to_hidden)
        through = _total(to_cell, arriving * (out_gate * (1 - squashed * squashed)))
        rows[step] = torch.cat(
            [
                through * (candidate * in_gate * (1 - in_gate)),
                through * (before * forget_gate * (1 - forget_gate)),
                through * (in_gate * (1 - candidate * candidate)),
                arriving * (squashed * out_gate * (1 - out_gate)),
            ],
            -1,
        )
        to_cell, to_hidden = through * forget_gate, torch.mm(rows[step], to_state)
    all_rows = torch.cat([rows[step] for step in range(len(inputs))])
    states: Any = dict(zip(steps, (before for before, *_ in saved), strict=True))
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


def _total(a: Any, b: Any) -> Any:
    """The sum of two cotangents; None stands for zero."""
    if a is None:
        return b
    return a if b is None else a + b
