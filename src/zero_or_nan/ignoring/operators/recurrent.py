"""A recurrent layer that runs as one kernel: where its derivative would give NaN, it runs again without what was lost.

Where that does not help, it is taken back through time step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..conditions import ALWAYS, MODERATE
from ..cotangent import Cotangent, mask_of, prefer_exact, step_of, unwrap, wrap
from ..failures import NotFollowed
from ..finite import any_nan
from ..graph import function_of
from ..masks import all_count, anywhere, only
from ..registry import function, rule

# What the fourth result holds is the kernel's own, in bytes.
function("MkldnnRnnLayer", safe_if=MODERATE, safe_if_saved={"result3": ALWAYS})

_LSTM = 2
"""How PyTorch numbers the kind of cell."""

_GRADS = ("grad_output", "grad_hy", "grad_cy")
_SAVED = ("output", "hy_", "cy_", "workspace")
_OF_SEQUENCES = (0, 5, 6)
"""Which results belong to sequences: those for the input, the first state and the first cell. Others are weights'."""


@rule("mkldnn_rnn_layer_backward")
def lstm_layer_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """One layer in one direction. Sequences don't influence each other, nor does a step those before it."""
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    counts = _reached(named)
    if counts is None:
        return wrap(op(*unwrap(args), **kwargs))
    is_lstm, weights_alone = named["mode"] == _LSTM, _is_for_weights_alone(args)
    if is_lstm and _has_lost_sequences(named, counts):
        again = _without(op, named, counts, weights_alone)
        if not any_nan(again):
            return _with_masks(again, counts)
        del again
    exact = op(*unwrap(args), **kwargs)
    if not any_nan(exact):
        return _with_masks(exact, counts)
    if not is_lstm:
        raise NotFollowed("is followed for the LSTM alone")
    again = exact if all_count(counts) else _without(op, named, counts, weights_alone)
    careful = _through_time(named) if any_nan(again) else _with_masks(again, counts)
    pairs = zip(exact, careful)  # noqa: B905
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
    """The steps, of each sequence in a column, that are used, and all before them; where an end is used, all."""
    steps = used.clone() if reverse else used.flip(0)
    for end in ends:
        steps[0] |= end
    steps = steps.cummax(0).values
    return steps if reverse else steps.flip(0)


def _has_lost_sequences(named: dict[str, Any], counts: Tensor) -> bool:
    """Whether there are some that end ignored, and in a state that is NaN throughout.

    Of all that belongs to one, and of all weights, plain PyTorch's gradient is NaN: there is nothing in it to keep.
    """
    end = named["hy_"].reshape(counts.shape[1], -1)
    return bool((end.isnan().all(-1) & counts[0 if named["reverse"] else -1].logical_not()).any())


def _is_for_weights_alone(args: Sequence[Any]) -> bool:
    """Whether nobody wants the gradients of the sequences."""
    step = step_of(args)
    if step is None or function_of(step.node.name()) != "MkldnnRnnLayer":
        return False
    return all(step.node.next_functions[number][0] is None for number in _OF_SEQUENCES)


def _without(op: Any, named: dict[str, Any], kept: Tensor, weights_alone: bool) -> tuple[Any, ...]:
    """Forward and backward once more, with zeros for the steps that are not kept.

    Sequences of which none is kept are left out where weights alone are asked for. Otherwise the batch stays as large
    as it is, for the kernel may add up in another order for a smaller one.
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
    with torch.enable_grad():  # otherwise the kernel keeps nothing for its derivative
        given["input"].requires_grad_()
        results = torch.ops.aten.mkldnn_rnn_layer(*(given[name] for name in (*tensors, *options)))
    given["input"] = given["input"].detach()
    given |= {name: result.detach() for name, result in zip(_SAVED, results, strict=True)}
    again = list(op(**given))
    if weights_alone:
        for number, name in zip(_OF_SEQUENCES, ("input", "hx_", "cx_tmp"), strict=True):
            again[number] = again[number].new_zeros(()).expand(named[name].shape)
    return tuple(again)


def _with_masks(values: Sequence[Any], counts: Tensor) -> tuple[Any, ...]:
    of_steps, of_sequences, of_weights = counts.unsqueeze(-1), counts.any(0).unsqueeze(-1), counts.any()
    masks = {number: of_sequences for number in _OF_SEQUENCES} | {0: of_steps}
    return tuple(
        None if value is None else Cotangent(value, masks.get(number, of_weights).expand(value.shape))
        for number, value in enumerate(values)
    )


def _through_time(named: dict[str, Any]) -> tuple[Any, ...]:
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
        taken, kept, new, shown = gates.chunk(4, -1)
        taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
        saved.append((hidden, cell, taken, kept, new, shown))
        cell = kept * cell + taken * new
        hidden = output[step]

    to_hidden, to_cell = (None if g is None else g.reshape(inputs.shape[1], -1) for g in (grad_hy, grad_cy))
    rows: dict[int, Any] = {}
    for step, (_, before, taken, kept, new, shown) in zip(steps[::-1], saved[::-1], strict=True):
        squashed = (kept * before + taken * new).tanh()
        arriving = _total(None if grad_output is None else grad_output.select(0, step), to_hidden)
        through = _total(to_cell, arriving * (shown * (1 - squashed * squashed)))
        rows[step] = torch.cat(
            [
                through * (new * taken * (1 - taken)),
                through * (before * kept * (1 - kept)),
                through * (taken * (1 - new * new)),
                arriving * (squashed * shown * (1 - shown)),
            ],
            -1,
        )
        to_cell, to_hidden = through * kept, torch.mm(rows[step], to_state)
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
    if a is None:
        return b
    return a if b is None else a + b
