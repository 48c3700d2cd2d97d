"""A recurrent layer that runs as one kernel: where its derivative gives NaN, back through time step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, mask_of, merge, plain, wrapped
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
    if not any(isinstance(value, Tensor) and bool(value.isnan().any()) for value in exact):
        batch = named["input"].shape[1]
        used = [torch.ones(batch, dtype=torch.bool) if mask is None else _sequences(mask, batch) for mask in masks]
        counts = torch.stack(used).any(0)
        return tuple(_with_mask(value, i, counts) for i, value in enumerate(exact))
    if named["mode"] != _LSTM:
        raise NotFollowed("is followed for the LSTM alone")
    careful = _through_time(named, *grads)
    return tuple(value if value is None else merge(value, c.reshape(value.shape)) for value, c in zip(exact, careful))  # noqa: B905


def _sequences(mask: Tensor, batch: int) -> Tensor:
    """Whether any entry of a sequence counts; the batch is the last dimension but one."""
    return mask.movedim(-2, 0).reshape(batch, -1).any(1)


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
