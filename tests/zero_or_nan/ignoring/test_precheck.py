"""A graph is called harmless only where the careful pass would give plain PyTorch's very bits."""

import contextlib
import itertools
from math import inf, nan
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from programs import programs
from sample import examples
from tensors import bits, leaf
from torch import nn
from users_functions import function

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import graph_from
from zero_or_nan.ignoring.engine import passes, precheck
from zero_or_nan.ignoring.engine.plan import nothing_ignored
from zero_or_nan.ignoring.engine.precheck import is_safe

_saved = torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result
tells = pytest.mark.skipif(not hasattr(_saved, "unpack_hook"), reason="this PyTorch doesn't tell who unpacks")


def graph_is_safe(loss):
    return is_safe(tuple(graph_from([loss])))


# Each loss is finite, and its plain gradient is not.

DANGEROUS = {
    "exp": (lambda x: torch.where(x < 50, x.exp(), 0.0), [1.0, 100.0]),
    "a tiny divisor": (lambda x: torch.where(x > 0.1, 1 / x, 0.0), [1.0, 1e-30]),
    "an infinite alpha": (lambda x: torch.where(x > -1, x, torch.add(x, x, alpha=inf)), [2.0, 0.0]),
    "a number that is 0 in float32": (lambda x: torch.where(x > -1, x, x / 1e-300), [2.0, 0.0]),
    "a negative power of 0": (lambda x: torch.where(x > 0, x**-1, 0.0), [1.0, 0.0]),
    "amax of NaN": (lambda x: torch.where(x < 50, (x.detach() * x).reshape(2, 1).amax(1), 0.0), [1.0, nan]),
    "a mean loss over no targets": (lambda x: torch.where(x > 1, x, weighted(x)), [2.0, 3.0]),
    "a batch norm that divides by 0": (  # F.batch_norm of 2.11 refuses an eps of 0, the operator does not
        lambda x: torch.where(x < 5, x, torch.batch_norm(
            x[:, None], None, None, torch.zeros(1), torch.zeros(1), False, 0.1, 0.0, False)[:, 0]),
        [2.0, 2.0]),
    "half and a large integer": (
        lambda x: torch.where(x < 5, x, x * torch.tensor([70000, 1])), [1.0, 1.0], torch.float16),
}  # fmt: skip


def weighted(x):
    """The mean over classes of no weight: 0/0."""
    logits = torch.stack([x, -x], 1)
    return F.cross_entropy(logits, torch.tensor([1, 1]), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("name", DANGEROUS)
def test_a_dangerous_graph_is_not_called_harmless(name):
    loss, values, *dtype = DANGEROUS[name]
    x = leaf(*values, dtype=dtype[0] if dtype else torch.float32)
    total = loss(x).sum()
    assert total.isfinite() and not torch.autograd.grad(total, x, retain_graph=True)[0].isfinite().all()
    assert not graph_is_safe(total)
    assert ignoring.grad(total, x)[0].isfinite().all()


def test_large_views_that_begin_alike_are_told_apart():
    count = 1 << 17
    memory = torch.ones(2 * count)
    memory[-2] = inf
    x = torch.ones(count, requires_grad=True)
    for y in (x * memory[:count] * memory[::2], x * memory[::2] * memory[:count]):
        assert not graph_is_safe(torch.where(torch.arange(count) < 5, y, 0.0).sum())
    z = x * memory[:count] * memory[1::2]
    assert graph_is_safe(z.sum()) or not hasattr(_saved, "unpack_hook")


# Graphs without a danger.


def conv_net():
    return (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2)),
        torch.randn(2, 1, 4, 4),
    )


def transformer():
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), torch.randn(2, 3, 4)


@tells
@pytest.mark.parametrize("build", [conv_net, transformer])
def test_a_network_is_harmless_only_if_it_is_clean(build, monkeypatch):
    """Then the careful pass has the same bits."""
    torch.manual_seed(0)
    net, inputs = build()
    loss = net(inputs).square().mean()
    assert graph_is_safe(loss)
    theirs = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    for value in (nan, inf, 3e38):
        spoilt = torch.cat([torch.full_like(inputs[:1], value), inputs[1:]])
        assert not graph_is_safe(net(spoilt)[1:].sum())
    monkeypatch.setattr(passes, "is_safe", lambda *_: False)
    ours = ignoring.grad(loss, list(net.parameters()))
    assert [bits(g) for g in ours] == [bits(g) for g in theirs]


@tells
@pytest.mark.parametrize("target", [0, -100])
def test_a_loss_that_is_no_mean_divides_by_no_total_weight(target):
    scores, targets = leaf([1.0, 2.0]), torch.tensor([target])
    for reduction in ("none", "sum"):
        assert graph_is_safe(F.cross_entropy(scores, targets, reduction=reduction).sum())
    assert graph_is_safe(F.cross_entropy(scores, targets)) == (target == 0)


@tells
def test_copysign_ignores_only_what_it_does_not_read():
    """So a graph in which nothing else ignores an element needs no pass."""
    x, two = leaf(1.0, 2.0), torch.tensor([2.0, 3.0])
    assert nothing_ignored(graph_from([torch.copysign(x, two).sum()]))
    assert not nothing_ignored(graph_from([torch.copysign(two, x).sum()]))
    triangle = torch.linalg.solve_triangular(x * torch.eye(2), torch.eye(2), upper=True)
    assert graph_is_safe((torch.copysign(x, x) + F.prelu(x, x[:1]) + triangle).sum())


# Many nodes.

ALIKE = {
    # Functions of x and a number, and harmless and dangerous numbers: tensors of many nodes are checked together.
    "of one shape": (lambda x, number, turn: x * torch.full((2,), number), [3.0], [nan, inf, -inf]),
    "one of them large": (
        lambda x, number, turn: x * torch.full((1 + precheck.SMALL * (turn == 2), 2), number), [3.0], [nan, -inf]),
    "numbers": (lambda x, number, turn: x * number, [1.01], [1e300, inf]),
    "divisors, also of different signs": (
        lambda x, number, turn: x / torch.full((2,), number), [3.0, -3.0], [1e-30, 0.0]),
}  # fmt: skip


@tells
@pytest.mark.parametrize("kind", ALIKE)
def test_among_many_alike_the_dangerous_node_is_found(kind):
    function, harmless, dangerous = ALIKE[kind]
    length, x = 501, leaf(1.0, 1.0)

    def nodes(number, place):
        results = [function(x, number if turn == place else 2.0, turn) for turn in range(length)]
        return sum(result[..., :1].sum() for result in results), results[place].grad_fn

    for number in harmless:
        with mock.patch.object(precheck, "_accepted_here", wraps=precheck._accepted_here) as checks:
            assert graph_is_safe(nodes(number, 3)[0])
        assert kind not in ("of one shape", "numbers") or checks.call_count < 40
    for number, place in itertools.product(dangerous, (0, length // 2, length - 1)):
        loss, node = nodes(number, place)
        unsafe = []
        assert not is_safe(graph_from([loss]), unsafe) and set(unsafe) == {node}


@pytest.mark.parametrize("hooked", [0, 5])
def test_looking_does_not_unpack_what_a_hook_would_compute(hooked):
    unpacked = []
    x = leaf(1.0, 2.0)
    total = x.sin()
    for turn in range(hooked + 1):
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t)
        with hooks if turn == hooked else contextlib.nullcontext():
            total = total + x.exp()
    assert not graph_is_safe(total[:1].sum()) and not unpacked


@pytest.mark.parametrize("place", [0, 1], ids=["at the beginning", "behind an offset"])
@pytest.mark.parametrize("size", [2, precheck.SMALL + 1])
def test_memory_that_was_given_back_is_not_looked_at(place, size):
    memory, x = torch.ones(2, size), torch.ones(size, requires_grad=True)
    y = x * memory[place]
    memory.untyped_storage().resize_(0)
    assert not graph_is_safe(y[:1].sum())


# What can't be known.


UNKNOWN = {
    "a foreign function": function(lambda ctx, x: x * 1, lambda ctx, g: g),
    "an operator that is not in the tables": lambda x: torch.special.i0(x),
    "a complex number": lambda x: (x * (1 + 1j)).abs(),
    "a checkpoint": lambda x: torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=False),
    "a reentrant checkpoint": lambda x: torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=True),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_not_called_harmless(name):
    assert not graph_is_safe(UNKNOWN[name](leaf(1.0, 2.0)).sum())


@tells
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@settings(deadline=None, derandomize=True, database=None, max_examples=examples(300),
          suppress_health_check=[HealthCheck.filter_too_much])  # fmt: skip
@given(program=programs())
def test_a_random_program_that_is_called_harmless_is(dtype, program):
    leaves, loss = program.by_pytorch(dtype)
    assume(loss.requires_grad and graph_is_safe(loss))
    theirs = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    with mock.patch.object(passes, "is_safe", lambda *_: False):
        ours = ignoring.grad(loss, leaves, allow_unused=True)
    assert [g is None or bits(g) for g in ours] == [g is None or bits(g) for g in theirs]
