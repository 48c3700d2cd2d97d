"""One step of an LSTM or a GRU, as GPUs compute it: element by element, from the gates that the kernel has saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditions import MODERATE
from ..cotangent import Cotangent, prefer_exact, unwrap
from ..masks import everywhere
from ..registry import function, rule

function("ThnnFusedGruCell ThnnFusedLstmCell", safe_if=MODERATE)


@rule("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    op: Any, to_hidden: Any, to_cell: Any, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> Any:
    """The gradients of the four gates, of the cell before, and of the bias."""
    exact = op(unwrap(to_hidden), unwrap(to_cell), before, after, gates, has_bias)
    taken, kept, new, shown = gates.chunk(4, -1)
    squashed = after.tanh()
    nothing = Cotangent(torch.zeros_like(after), everywhere(False, after))
    to_hidden, to_cell = (nothing if grad is None else grad for grad in (to_hidden, to_cell))
    through = to_hidden * shown * (1 - squashed * squashed) + to_cell
    to_taken = through * new * (1 - taken) * taken
    to_kept = through * before * (1 - kept) * kept
    to_new = through * taken * (1 - new * new)
    to_shown = to_hidden * squashed * (1 - shown) * shown
    to_gates = torch.cat([to_taken, to_kept, to_new, to_shown], -1)
    careful = to_gates, through * kept, to_gates.sum(0) if has_bias else None
    return prefer_exact(exact, careful)


@rule("_thnn_fused_gru_cell_backward")
def gru_cell_backward(op: Any, to_hidden: Any, saved: Tensor, has_bias: bool) -> Any:
    """The gradients of the three gates of the input, of those of the state, of the state, and of the biases."""
    exact = op(unwrap(to_hidden), saved, has_bias)
    reset, kept, new, before, from_state = saved.chunk(5, -1)
    to_kept = to_hidden * (before - new) * (1 - kept) * kept
    to_new = to_hidden * (1 - kept) * (1 - new * new)
    to_reset = to_new * from_state * (1 - reset) * reset
    of_input = torch.cat([to_reset, to_kept, to_new], -1)
    of_state = torch.cat([to_reset, to_kept, to_new * reset], -1)
    biases = (of_input.sum(0), of_state.sum(0)) if has_bias else (None, None)
    return prefer_exact(exact, (of_input, of_state, to_hidden * kept, *biases))
