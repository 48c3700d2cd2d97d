"""A recurrent layer that runs as one kernel: where its derivative gives NaN, it runs again without what was lost.

Where that does not help, it is taken back through time step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, has_nan, mask_of, merge, plain, wrapped
from ..masks import anywhere
from ..registry import NotFollowed, rule

_LSTM = 2
"""How PyTorch numbers the kind of cell."""


@rule("mkldnn_rnn_layer_backward")
def lstm_layer_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """One layer in one direction. The sequences of a batch don't influence each other."""
    exact = op(*plain(args), **kwargs)
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    grads = [named[name] for name in ("grad_output", "grad_hy", "grad_cy")]
    masks = [mask_of(grad) for grad in grads if grad is not None]
    if all(mask is None for mask in masks):
        return wrapped(exact)
    batch = named["input"].shape[1]
    used = [torch.ones(batch, dtype=torch.bool) if mask is None else _sequences(mask, batch) for mask in masks]
    counts = torch.stack(used).any(0)
    if not _has_nan(exact):
        return tuple(_with_mask(value, i, counts) for i, value in enumerate(exact))
    if named["mode"] != _LSTM:
        raise NotFollowed("is followed for the LSTM alone")
    again = _without_lost_sequences(op, named, counts)
    if not _has_nan(again):
        careful = tuple(_with_mask(value, i, counts) for i, value in enumerate(again))
    else:
        careful = _through_time(named, *grads)
    return tuple(value if value is None else merge(value, c.reshape(value.shape)) for value, c in zip(exact, careful))  # noqa: B905


_SAVED = ("output", "hy_", "cy_", "workspace")


def _has_nan(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and has_nan(value) for value in values)


def _without_lost_sequences(op: Any, named: dict[str, Any], counts: Tensor) -> tuple[Any, ...]:
    """Forward and backward once more, with zeros for the sequences that are ignored altogether."""
    given = plain(named)
    for name in ("input", "hx_", "cx_tmp"):
        given[name] = torch.where(counts.unsqueeze(-1), given[name], 0).contiguous()
    options = ("reverse", "batch_sizes", "mode", "hidden_size", "num_layers", "has_biases", "bidirectional",
               "batch_first", "train")  # fmt: skip
    tensors = ("input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp")
    with torch.enable_grad():  # otherwise the kernel keeps nothing for its derivative
        given["input"].requires_grad_()
        results = torch.ops.aten.mkldnn_rnn_layer(*(given[name] for name in (*tensors, *options)))
    given["input"] = given["input"].detach()
    given |= {name: result.detach() for name, result in zip(_SAVED, results, strict=True)}
    again: tuple[Any, ...] = op(**given)
    return again


def _sequences(mask: Tensor, batch: int) -> Tensor:
    """Whether any entry of a sequence counts; the batch is the last dimension but one."""
    return anywhere(mask.movedim(-2, 0).reshape(batch, -1), 1)


def _with_mask(value: Any, number: int, counts: Tensor) -> Any:
    if value is None:
        return None
    of_sequences = number in (0, 5, 6)  # input, first state, first cell; the others are weights
    return Cotangent(value, (counts.unsqueeze(-1) if of_sequences else counts.any()).expand(value.shape))


def _through_time(named: dict[str, Any], grad_output: Any, grad_hy: Any, grad_cy: Any) -> tuple[Any, ...]:
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
