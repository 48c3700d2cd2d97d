"""Recurrent nets: next to each used sequence alone in float64, and next to plain PyTorch's bits."""

import random
from math import inf, nan

import pytest
import torch
from alone import assert_close, of_each_sequence
from telling import told
from tensors import all_bits
from torch import nn
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring
from zero_or_nan.functions.families import recurrent


class Net:
    """An LSTM of some kind, and a batch whose ignored sequences, or the ends of all sequences, are poison."""

    def __init__(self, seed):
        pick = random.Random(seed)
        torch.manual_seed(seed)
        self.batch, self.steps = pick.randint(1, 33), pick.randint(1, 6)
        features, width = (pick.choice([1, 2, 3, 8, 17, 64, 130, pick.randint(1, 130)]) for _ in range(2))
        layers, self.both_ways = pick.choice([1, 1, 2]), pick.random() < 0.3
        self.dtype = pick.choice([torch.float32, torch.float32, torch.bfloat16])
        kind = {"bias": pick.random() < 0.7, "num_layers": layers, "bidirectional": self.both_ways}
        self.layers = nn.LSTM(features, width, batch_first=True, **kind).to(self.dtype)
        self.reference = nn.LSTM(features, width, batch_first=True, **kind).double()
        self.reference.load_state_dict(self.layers.state_dict())
        self.clean = torch.randn(self.batch, self.steps, features).to(self.dtype)
        shape = (layers * (1 + self.both_ways), self.batch, width)
        self.states = [torch.randn(shape).to(self.dtype) for _ in range(2)] if pick.random() < 0.5 else []
        self.used = torch.rand(self.batch) < 0.6
        self.used[pick.randrange(self.batch)] = True
        poison = pick.choice([nan, nan, nan, inf, 3e38])
        self.poisoned = self.clean.clone()
        self.poisoned[~self.used, pick.randrange(self.steps)] = poison
        self.lengths = torch.full((self.batch,), self.steps)
        self.whole = self.both_ways or pick.random() < 0.6
        if not self.whole:  # the loss uses the first steps of each sequence
            self.lengths = torch.randint(1, self.steps + 1, (self.batch,))
            self.poisoned[torch.arange(self.steps) >= self.lengths[:, None]] = poison
        self.poisoned_states = [state.clone() for state in self.states]
        for state in self.poisoned_states:
            state[:, ~self.used] = poison
        self.wanted = pick.random() < 0.5  # the gradients of what comes in, not of the weights alone

    def loss(self, out, state, cell):
        total = sum(out[row, : self.lengths[row]].float().sum() for row in range(self.batch) if self.used[row])
        if self.whole:
            total = total + state[:, self.used].float().square().sum() + 2 * cell[:, self.used].float().sum()
        return total

    def gradients(self, backward):
        self.layers.zero_grad()
        came_in = [t.clone().requires_grad_(self.wanted) for t in (self.poisoned, *self.poisoned_states)]
        out, states = self.layers(came_in[0], tuple(came_in[1:]) or None)
        backward(self.loss(out, *states))
        return [p.grad for p in self.layers.parameters()] + [t.grad for t in came_in if self.wanted]

    def right(self):
        """Each used sequence alone, as long as it is used."""

        def loss(out, last):
            return out.sum() + (last[0].square().sum() + 2 * last[1].sum() if self.whole else 0)

        rows = self.used.nonzero()[:, 0].tolist()
        found = of_each_sequence(self.reference, self.clean, self.states, rows, self.lengths, loss)
        return found if self.wanted else found[: len(list(self.reference.parameters()))]


@pytest.mark.parametrize("seed", range(24))
def test_each_used_sequence_as_alone_and_what_is_finite_in_plain_keeps_its_bits(seed, monkeypatch):
    monkeypatch.setattr(recurrent, "_through_time", lambda *args: pytest.fail("no step had to be taken by itself"))
    net = Net(seed)
    found, plain, right = net.gradients(ignoring.backward), net.gradients(torch.Tensor.backward), net.right()
    for ours, theirs, reference in zip(found, plain, right, strict=True):
        finite = theirs.isfinite()
        assert torch.equal(all_bits(ours)[finite], all_bits(theirs)[finite])
        off = (ours.double() - reference).abs().max() / (reference.abs().max() + 1e-3)
        assert off < (0.1 if net.dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("lost", [(), (4, 5)])
def test_nan_that_is_used_stays(lost):
    layers, rows = nn.LSTM(3, 4, batch_first=True), torch.randn(6, 5, 3)
    rows[[1, *lost], 2, 0] = nan
    ignoring.backward(layers(rows)[0][:4].sum())
    assert all(p.grad.isnan().all() for p in layers.parameters())


def test_the_way_back_begins_at_the_end(monkeypatch):
    """What comes after its last used step, the first in time, is ignored and NaN; of the way there, all is."""
    monkeypatch.setattr(recurrent, "_through_time", lambda *args: pytest.fail("no step had to be taken by itself"))
    torch.manual_seed(0)
    layers, rows = nn.LSTM(3, 4, batch_first=True, bidirectional=True), torch.randn(6, 5, 3)
    rows[:, :2] = nan
    rows.requires_grad_()
    ignoring.backward(layers(rows)[0][:, 2:, 4:].square().sum())
    back = nn.LSTM(3, 4, batch_first=True).double()
    reverse = {name: value for name, value in layers.state_dict().items() if name.endswith("reverse")}
    back.load_state_dict({name.removesuffix("_reverse"): value for name, value in reverse.items()})
    alone = rows.detach()[:, 2:].flip(1).double().requires_grad_()
    back(alone)[0].square().sum().backward()
    torch.testing.assert_close(rows.grad[:, 2:].double(), alone.grad.flip(1), rtol=1e-4, atol=1e-6)
    assert not rows.grad[:, :2].any()
    for name, parameter in back.named_parameters():
        ours = layers.get_parameter(f"{name}_reverse").grad
        torch.testing.assert_close(ours.double(), parameter.grad, rtol=1e-4, atol=1e-6)


# Packed sequences of several lengths, whose padding is poison.

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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_gradient_and_the_gradient_of_a_penalty_on_it(kind):
    torch.manual_seed(0)
    layer, rows = kind(2, 3, batch_first=True), torch.randn(2, 4, 2)
    weights = list(layer.parameters())

    def gradients(auto, x):
        first = auto.grad(layer(x)[0][:1].square().sum(), weights, create_graph=True)
        return [*first, *auto.grad(sum(each.square().sum() for each in first), weights)]

    poisoned = torch.stack([rows[0], torch.full_like(rows[1], nan)])
    torch.testing.assert_close(gradients(ignoring, poisoned), gradients(torch.autograd, rows[:1]))
