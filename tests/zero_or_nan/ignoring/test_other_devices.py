"""Kernels of other devices, played by this processor: next to what is used alone, in float64.

Each is registered for the processor's tensors while a test runs, so that PyTorch's own nodes and formulas call it.
"""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf, nan

import pytest
import torch
from alone import assert_close, of_each_sequence
from torch import nn
from torch.nn import functional as F

from zero_or_nan import ignoring
from zero_or_nan.functions.families.recurrent import _back_through_step
from zero_or_nan.ignoring import Cotangent

aten = torch.ops.aten
MODES = {"relu": 0, "tanh": 1, "LSTM": 2, "GRU": 3}


def with_autograd(function):
    """A kernel is called where nothing is recorded; another thread knows nothing of that."""

    def kernel(*args):
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function, *args).result()

    return kernel


@pytest.fixture(autouse=True)
def played():
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU")
        yield


RUNS = []
"""The leaves and the results of each forward run of a recurrent net, by PyTorch's functions for this processor."""


def forward(
    x, weight, stride, buffer, hx, cx, mode, size, projected, layers, first, dropout, train, both_ways, sizes, _
):
    given = [t.detach().requires_grad_() for t in (x, hx, cx, *weight) if t is not None]
    states, weight = given[1 : -len(weight)], given[-len(weight) :]
    function = [torch._VF.rnn_relu, torch._VF.rnn_tanh, torch._VF.lstm, torch._VF.gru][mode]
    how = (states if cx is not None else states[0], weight, stride > 3, layers, dropout, train, both_ways)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a projection is not done by the kernel for processors
        results = function(given[0], torch.tensor(sizes), *how) if sizes else function(given[0], *how, first)
    RUNS.append((given, results))
    shown = *(result.detach() for result in results), torch.empty(0)
    return (*shown[:3], torch.tensor([len(RUNS) - 1]), torch.empty(0))


def backward(*args):
    """Backward computes from what the forward run kept alone, which can't be used again."""
    kept, (given, results) = args[-2], RUNS[args[-2]]
    total = sum((r * g).sum() for r, g in zip(results, args[7:10], strict=False) if g is not None)
    found = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True, materialize_grads=True)
    kept.fill_(len(RUNS))
    cell = [found[2] if args[5] is not None else None]
    return (*found[:2], *cell, found[-len(args[1]) :] if args[-1][3] else [])


def lstm_cell(of_input, of_state, before, *biases):
    gates = (of_input + of_state + sum(bias for bias in biases if bias is not None)).chunk(4, -1)
    taken, kept, new, shown = gates[0].sigmoid(), gates[1].sigmoid(), gates[2].tanh(), gates[3].sigmoid()
    after = kept * before + taken * new
    return shown * after.tanh(), after, torch.cat([taken, kept, new, shown], -1)


def lstm_cell_backward(to_hidden, to_cell, before, after, gates, has_bias):
    arriving = (torch.zeros_like(after) if gradient is None else gradient for gradient in (to_hidden, to_cell))
    to_gates, to_before = _back_through_step(*arriving, before, after.tanh(), gates.chunk(4, -1))
    return to_gates, to_before, to_gates.sum(0)


def gru_cell(of_input, of_state, before, *biases):
    if biases and biases[0] is not None:
        of_input, of_state = of_input + biases[0], of_state + biases[1]
    (r, i, n), (hr, hi, hn) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    reset, kept = (r + hr).sigmoid(), (i + hi).sigmoid()
    new = (n + reset * hn).tanh()
    return new + kept * (before - new), torch.cat([reset, kept, new, before, hn], -1)


def gru_cell_backward(to_hidden, saved, has_bias):
    reset, kept, new, before, hn = saved.chunk(5, -1)
    to_new = to_hidden * (1 - kept) * (1 - new**2)
    to_kept, to_reset = to_hidden * (before - new) * (1 - kept) * kept, to_new * hn * (1 - reset) * reset
    of_input = torch.cat([to_reset, to_kept, to_new], -1)
    of_state = torch.cat([to_reset, to_kept, to_new * reset], -1)
    return of_input, of_state, to_hidden * kept, of_input.sum(0), of_state.sum(0)


def batch_norm_backward(images, grad, weight, mean, var, save_mean, save_var, epsilon):
    how = (mean, var, save_mean, save_var, True, epsilon, [True] * 3)
    return aten.native_batch_norm_backward(grad, images, weight, *how)


KERNELS = {
    "_cudnn_rnn": with_autograd(forward),
    "_cudnn_rnn_backward": with_autograd(backward),
    "miopen_rnn": with_autograd(lambda *args: forward(*args[:3], None, *args[3:7], 0, *args[7:])),
    "miopen_rnn_backward": with_autograd(backward),
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "cudnn_affine_grid_generator_backward": lambda grad, *size: aten.affine_grid_generator_backward(grad, size, True),
    "miopen_batch_norm_backward": batch_norm_backward,
}


def all_layers(name, net, mode, x, states, sizes=(), batch_first=True, dropout=0.0):
    """One of the kernels for all layers, with a net's weights, as PyTorch's functions call it."""
    weight = list(net.parameters()), len(net.all_weights[0])
    states = states if mode == "LSTM" else (states[0], None)
    how = [net.num_layers, batch_first, dropout, True, net.bidirectional, list(sizes), None]
    if name == "miopen_rnn":
        return torch.miopen_rnn(x, *weight, *states, MODES[mode], 4, *how)[:3]
    return torch._cudnn_rnn(x, *weight, None, *states, MODES[mode], 4, net.proj_size, *how)[:3]


def setting(mode, layers, both_ways, bias=True, projected=0):
    torch.manual_seed(0)
    kinds = {"GRU": nn.GRU, "LSTM": partial(nn.LSTM, proj_size=projected)}
    make = kinds.get(mode) or partial(nn.RNN, nonlinearity=mode)
    net = make(3, 4, num_layers=layers, bidirectional=both_ways, batch_first=True, bias=bias)
    states = [torch.randn(layers * (1 + both_ways), 5, s) for s in ((projected or 4), 4)][: 1 + (mode == "LSTM")]
    return net, torch.randn(5, 4, 3), states


CASES = [
    *(("_cudnn_rnn", mode, (2, True), "in rows", {}) for mode in MODES),
    ("miopen_rnn", "LSTM", (2, False), "in rows", {}),
    *(("_cudnn_rnn", mode, (2, False), "in rows of several lengths", {}) for mode in MODES),
    *(("_cudnn_rnn", mode, (1, False), "packed", {}) for mode in MODES),
    ("_cudnn_rnn", "GRU", (2, True), "packed", {}),
    *(("_cudnn_rnn", "LSTM", (1, False), "in rows", {"bias": bias, "projected": 2}) for bias in (True, False)),
]


@pytest.mark.parametrize(("name", "mode", "kind", "form", "options"), CASES)
def test_each_used_sequence_learns_as_alone(name, mode, kind, form, options):
    """Ignored sequences, the steps after the last that is used, and ignored first states are poison."""
    net, x, states = setting(mode, *kind, **options)
    lengths = [4] * 5 if form == "in rows" else [4, 3, 3, 2, 1]
    used = [0, 2, 3]
    given = [t.clone() for t in (x, *states)]
    given[0][1, 2], given[0][4] = inf, nan
    given[1][:, 4] = nan
    if form == "in rows of several lengths":
        for row, length in enumerate(lengths):
            given[0][row, length:] = nan
    given = [t.requires_grad_() for t in given]
    if form == "packed":
        packed = nn.utils.rnn.pack_padded_sequence(given[0], torch.tensor(lengths), True)
        data, last, _ = all_layers(name, net, mode, packed.data, given[1:], packed.batch_sizes.tolist())
        out, _ = nn.utils.rnn.pad_packed_sequence(packed._replace(data=data), True)
    else:
        out, last, _ = all_layers(name, net, mode, given[0].transpose(0, 1), given[1:], batch_first=False)
        out = out.transpose(0, 1)

    def loss(out, last):
        return out.square().sum() + (last[0].sum() if form != "in rows of several lengths" else 0)

    ignoring.backward(sum(loss(out[row, : lengths[row]], [last[:, row]]) for row in used))
    found = [p.grad.clone() for p in net.parameters()] + [t.grad for t in given]
    assert_close(found, of_each_sequence(net, x, states, used, lengths, loss))


@pytest.mark.parametrize("poison", [1.0, nan])
def test_what_is_used_has_plain_pytorchs_bits(poison):
    """The root of 0, of a sequence that is ignored, has an infinite slope, so masks have to come through."""
    net, x, states = setting("GRU", 2, False)
    squares_of_x = x.square()
    squares_of_x[1], squares_of_x[4] = poison, 0
    gradients = []
    for way in (torch.Tensor.backward, ignoring.backward):
        net.zero_grad()
        given = squares_of_x.clone().requires_grad_()
        way(all_layers("_cudnn_rnn", net, "GRU", given.sqrt(), states)[0][:3].sum())
        gradients.append([given.grad[:3], *(p.grad for p in net.parameters())])
    for plain, ours in zip(*gradients, strict=True):
        assert torch.equal(plain.nan_to_num(99), ours.nan_to_num(99))
        assert bool(ours.isnan().any()) == math.isnan(poison)
    assert not given.grad[3:].any()


@pytest.mark.parametrize(("mode", "dropout", "why"), [("tanh", 0.0, "mixes what counts"), ("LSTM", 0.5, "dropout")])
def test_what_the_kernel_can_not_say_is_told(mode, dropout, why):
    """NaN beside what is used in one step, from a row of weights; and what dropout between layers has kept."""
    net, x, states = setting(mode, 2 if dropout else 1, False)
    with torch.no_grad():
        net.weight_ih_l0[0] = nan
    out = all_layers("_cudnn_rnn", net, mode, x[:, :1].clone().requires_grad_(), states, dropout=dropout)[0]
    with pytest.warns(UserWarning, match=f"_cudnn_rnn_backward.*{why}"):
        ignoring.backward(out[:3, ..., 1:].sum())


CELLS = {
    "LSTM": (nn.LSTMCell, lambda gates, states, biases: aten._thnn_fused_lstm_cell(*gates, states[1], *biases)[:2]),
    "GRU": (nn.GRUCell, lambda gates, states, biases: aten._thnn_fused_gru_cell(*gates, states[0], *biases)[:1]),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("poison", [nan, inf])
@pytest.mark.parametrize(
    ("kind", "used"), [("LSTM", slice(1)), ("LSTM", slice(1, 2)), ("LSTM", slice(2)), ("GRU", slice(1))]
)
def test_a_cell_in_one_kernel(kind, poison, used, biased):
    """The loss uses its hidden state, its cell or both, of three rows; but no element that is poison."""
    torch.manual_seed(0)
    made, fused = CELLS[kind]
    cell = made(3, 4, bias=biased)
    clean = [torch.randn(5, n) for n in (3, 4, 4)][: 3 if kind == "LSTM" else 2]
    given = [t.clone() for t in clean]
    given[0][3], given[-1][4] = poison, nan
    if kind == "LSTM":
        given[2][2, 0] = poison  # nothing else depends on this element
    given = [t.requires_grad_() for t in given]
    kept = torch.ones(5, 4, dtype=torch.bool)
    kept[3:] = kept[2, 0] = False
    gates = given[0] @ cell.weight_ih.T, given[1] @ cell.weight_hh.T
    states = fused(gates, given[1:], (cell.bias_ih, cell.bias_hh) if biased else (None, None))
    ignoring.backward(sum(state[kept].square().sum() for state in states[used]))
    found = [t.grad.clone() for t in (*cell.parameters(), *given)]
    cell.double().zero_grad()
    exact = [t.double().requires_grad_() for t in clean]
    rows = [t[:3] for t in exact]
    right = cell(rows[0], tuple(rows[1:])) if kind == "LSTM" else (cell(*rows),)
    sum(state[kept[:3]].square().sum() for state in right[used]).backward()
    assert_close(found, [t.grad for t in (*cell.parameters(), *exact)])


# Other kernels.


def cotangent(value, mask):
    return Cotangent(value * mask, mask.expand(value.shape))


def test_a_grid_by_another_library():
    torch.manual_seed(0)
    grad, mask = torch.randn(2, 4, 5, 2), torch.tensor([True, False])
    for used, wanted in ((mask.view(2, 1, 1, 1), mask.view(2, 1, 1)), (mask, mask.view(1, 2, 1))):  # image, coordinate
        result = aten.cudnn_affine_grid_generator_backward(cotangent(grad, used), 2, 3, 4, 5)
        assert torch.equal(result.value, aten.affine_grid_generator_backward(grad * used, [2, 3, 4, 5], True))
        assert torch.equal(result.mask, wanted.expand(2, 2, 3))


def test_a_batch_norm_by_another_library():
    """A channel of NaN is ignored."""
    torch.manual_seed(0)
    images, grad, weight = torch.randn(3, 2, 4), torch.randn(3, 2, 4), torch.rand(2)
    images[:, 1] = nan
    mean, deviation = images.mean((0, 2)), images.var((0, 2), correction=0)
    saved = None, None, mean, (deviation + 1e-5).rsqrt(), 1e-5
    used = torch.tensor([True, False]).view(2, 1)
    found = aten.miopen_batch_norm_backward(images, cotangent(grad, used), weight, *saved)
    exact = [t.double().requires_grad_() for t in (images[:, :1], weight[:1], torch.zeros(1))]
    (F.batch_norm(exact[0], None, None, *exact[1:], True) * grad[:, :1]).sum().backward()
    assert_close([found[0].value[:, :1], *(part.value[:1] for part in found[1:])], [t.grad for t in exact])
    assert not found[0].value[:, 1].any() and not found[1].value[1] and not found[2].value[1]
    assert torch.equal(found[0].mask, used.expand(3, 2, 4))
