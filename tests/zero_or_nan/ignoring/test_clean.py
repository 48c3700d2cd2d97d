"""Clean programs of every kind give the very bits, strides, dtypes and types of plain PyTorch, and no warning."""

import pytest
import torch
import torch.nn.functional as F
from plainly import both, checkpointed, leaf, lost
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import register_multi_grad_hook
from torch.masked import as_masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

from zero_or_nan import ignoring

CLEAN = {}
"""Programs by name: each takes torch.autograd or ignoring, and returns all that can be seen of its pass."""


def clean(program):
    CLEAN[program.__name__.replace("_", " ")] = program
    return program


# Tensors of every kind.


@clean
def a_wrapper_subclass(auto):
    numbers, w = torch.randn(3, 2), leaf(2, 2)
    x = TwoTensor(numbers, numbers.clone()).requires_grad_()
    auto.backward(lost((x @ torch.ones(2, 2)).exp().clamp(0.1, 2)))
    return [x.grad, auto.grad(lost(w.exp()), [w])]


@clean
def fake_tensors(auto):
    with FakeTensorMode():
        x, w = leaf(3, 2), leaf(2, 2)
        y = (x @ w).clamp(0, 1)
        y[:, 0] *= 2
        auto.backward(lost(F.layer_norm(y, (2,)).exp()))
        return [x.grad, w.grad]


@clean
def masked_tensors(auto):
    x = torch.tensor([1.0, 2.0, 100.0], requires_grad=True)
    auto.backward(as_masked_tensor(x, x < 50).exp().sum())
    return x.grad


@clean
def complex_numbers(auto):
    x, w = leaf(3, 2, dtype=torch.complex64), leaf(2, 2, dtype=torch.complex128)
    y = (x.exp() @ w.to(torch.complex64)).conj()
    spectrum = torch.fft.ifft(torch.fft.fft(y, dim=0) * 2, dim=0)
    auto.backward(lost(spectrum.abs()) + lost(torch.view_as_real(y.resolve_conj())) + lost(y.imag))
    return [x.grad, w.grad]


# Checkpoints.


@clean
def checkpoints_in_checkpoints(auto):
    gradients = []
    for outer, inner in ((True, True), (True, False), (False, True), (False, False)):
        x, w = leaf(3, 3), leaf(3, 3)

        def inside(x, w=w):
            return (x @ w).clamp(-1, 1).exp()

        def around(x, inside=inside, inner=inner):
            return checkpointed(inside, inner)(x * 2)[:2]

        auto.backward(lost(checkpointed(around, outer)(x * 1)))
        gradients += [x.grad, w.grad]
    return gradients


# Hooks.


@clean
def hooks_of_every_kind(auto):
    order = []

    def note(name, result=None):
        def hook(*arguments):
            order.append([name, *(argument for argument in arguments if isinstance(argument, (Tensor, tuple)))])
            return result(*arguments) if result else None

        return hook

    linear = nn.Linear(3, 3)
    linear.register_full_backward_pre_hook(note("module before"))
    linear.register_full_backward_hook(note("module"))
    x = leaf(4, 3)
    y = x * 2
    z = linear(y).exp()
    y.retain_grad()
    y.register_hook(note("tensor"))
    y.register_hook(note("tensor, doubles", lambda g: g * 2))
    z.retain_grad()
    z.grad_fn.register_prehook(note("before the node"))
    z.grad_fn.register_hook(note("after the node"))
    z.grad_fn.register_prehook(note("before the node, doubles", lambda gs: (gs[0] * 2,)))
    x.register_hook(note("leaf"))
    x.register_post_accumulate_grad_hook(lambda leaf: order.append(["accumulated", leaf.grad.clone()]))
    register_multi_grad_hook([y, z], note("multi"))
    register_multi_grad_hook([y, z], note("any"), mode="any")
    loss = lost(z)
    loss.register_hook(note("loss"))
    auto.backward(loss)
    return [order, x.grad, y.grad, z.grad, linear.weight.grad]


@clean
def views_and_writes_in_place(auto):
    x = leaf(4, 3)
    y = x * 1
    y.t()[0].mul_(2)
    y[1:3] = y[:2].clone() * 2
    y.view(-1)[::2].clamp_(-1, 1)
    y.select(0, 0).copy_(x[1])
    y.masked_fill_(y > 2, 0.0).index_add_(0, torch.tensor([0]), x[:1])
    auto.backward(lost(y))
    return x.grad


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_program_is_plain_pytorchs(name, each_way):
    plain, ours = both(CLEAN[name])
    assert ours == plain


def test_compiled_autograd_steps_aside_while_a_pass_runs():
    from torch._dynamo import compiled_autograd

    compiled = []
    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    loss = torch.where(x < 50, x.exp(), torch.zeros(())).sum()
    with enable(lambda graph: compiled.append(graph) or graph):
        ignoring.backward(loss)
        assert compiled == [] and compiled_autograd.compiled_autograd_enabled
    assert x.grad.equal(torch.tensor([torch.tensor(1.0).exp(), 0]))
