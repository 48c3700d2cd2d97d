"""One step of an LSTM or a GRU, as GPUs compute it: elementwise, from the gates that the kernel has saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, prefer_exact, unwrap
from ...masks.mask import everywhere
from ..conditions import MODERATE
from ..registry import function, rule

function("ThnnFusedGruCell ThnnFusedLstmCell", safe_if=MODERATE)


@rule("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    op: Any, to_hidden: Any, to_cell: Any, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> Any:
    """The gradients of the four gates, of the previous cell state, and of the bias."""
    exact = op(unwrap(to_hidden), unwrap(to_cell), before, after, gates, has_bias)
    in_gate, forget_gate, candidate, out_gate = gates.chunk(4, -1)
    squashed = after.tanh()
    nothing = Cotangent(torch.zeros_like(after), everywhere(False, after))
    to_hidden, to_cell = (nothing if grad is None else grad for grad in (to_hidden, to_cell))
    through = to_hidden * out_gate * (1 - squashed * squashed) + to_cell
    to_in = through * candidate * (1 - in_gate) * in_gate
    to_forget = through * before * (1 - forget_gate) * forget_gate
    to_candidate = through * in_gate * (1 - candidate * candidate)
    to_out = to_hidden * squashed * (1 - out_gate) * out_gate
    to_gates = torch.cat([to_in, to_forget, to_candidate, to_out], -1)
    masked = to_gates, through * forget_gate, to_gates.sum(0) if has_bias else None
    return prefer_exact(exact, masked)


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
