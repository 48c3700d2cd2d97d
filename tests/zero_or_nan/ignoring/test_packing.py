"""Sequences of several lengths, whose padding is poison: next to each of them alone, in float64."""

from math import nan

import pytest
import torch
from alone import assert_close, of_each_sequence
from telling import told
from torch import nn
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring

FEATURES, WIDTH = 3, 4
SORTED, UNSORTED = [5, 3, 3, 1], [3, 1, 5, 3]
CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


class Reader(nn.Module):
    """The root of each reading, embedded, and a recurrent net: of a padded batch, or of one sequence alone."""

    def __init__(self, cell, **kind):
        super().__init__()
        self.embed = nn.Linear(FEATURES, 2)
        self.cells = CELLS[cell](2, WIDTH, batch_first=True, **kind)

    def embedded(self, x):
        return self.embed(x.sqrt())

    def forward(self, x, states):
        return self.cells(self.embedded(x), states)


def batch(lengths, poison):
    torch.manual_seed(0)
    clean = torch.rand(len(lengths), max(lengths), FEATURES) + 0.5
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return clean, clean.masked_fill(padding[..., None], poison)


def assert_right(reader, x, clean, lengths, loss, used):
    found = [*(p.grad.clone() for p in reader.parameters()), x.grad]
    assert_close(found, of_each_sequence(reader, clean, (), used, lengths, loss))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("in_order", "batch_first"), [(True, True), (False, False)], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("kind", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one layer", "both ways"])
@pytest.mark.parametrize("poison", [nan, 0.0], ids=["NaN", "0"])
def test_padding_that_is_packed_away_is_ignored(cell, in_order, batch_first, kind, poison):
    lengths = SORTED if in_order else UNSORTED
    reader = Reader(cell, **kind)
    clean, poisoned = batch(lengths, poison)
    x = poisoned.requires_grad_()
    padded = reader.embedded(x if batch_first else x.transpose(0, 1))
    packed = rnn.pack_padded_sequence(padded, torch.tensor(lengths), batch_first, enforce_sorted=in_order)
    out, states = reader.cells(packed)
    back, _ = rnn.pad_packed_sequence(out, batch_first, padding_value=nan, total_length=7)
    back = back if batch_first else back.transpose(0, 1)
    known = torch.arange(7) < torch.tensor(lengths)[:, None]
    last = states if isinstance(states, tuple) else (states,)
    used = [0, 2, 3]
    kept = back[used][known[used]]
    ignoring.backward(kept.square().sum() + sum(state[:, used].sum() for state in last))
    assert not x.grad[~known[:, :5]].any()
    assert_right(reader, x, clean, lengths, lambda out, last: out.square().sum() + sum(s.sum() for s in last), used)


@pytest.mark.parametrize("reentrant", [True, False])
def test_in_a_checkpoint(reentrant):
    """One that brings saved tensors back by hooks gives each once: it is told that the gradient is plain PyTorch's."""
    reader = Reader("GRU")
    x = batch(SORTED, nan)[1].requires_grad_()

    def packed(x):
        return reader.cells(rnn.pack_padded_sequence(reader.embedded(x), torch.tensor(SORTED), True))[0].data

    _, messages = told(lambda: ignoring.backward(checkpoint(packed, x, use_reentrant=reentrant).sum()))
    followed = bool(reader.embed.weight.grad.isfinite().all())
    assert followed != any("PackPaddedSequence" in message for message in messages)
    assert followed or not reentrant
