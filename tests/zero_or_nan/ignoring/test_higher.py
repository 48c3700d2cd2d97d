"""Gradients of gradients: what the first pass ignored is a constant for the second, and for the third."""

import gc
import math
import warnings
import weakref
from contextlib import nullcontext
from math import isfinite

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from programs import WEIGHTS, programs
from sample import examples
from tensors import guard
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from zero_or_nan import ignoring

properties = settings(deadline=None, derandomize=True, database=None, max_examples=examples(1000))


def gradients(auto, program, order, dtype=torch.float64):
    """That of the weighted sum of the gradient before, and so on; None for a leaf that nothing leads back to."""
    leaves, loss = program.by_pytorch(dtype)
    weights = torch.tensor(WEIGHTS, dtype=dtype).reshape(2, -1)
    for _ in range(order - 1):
        assume(loss.requires_grad)
        found = auto.grad(loss, leaves, create_graph=True, allow_unused=True)
        loss = sum((w * g).sum() for w, g in zip(weights, found, strict=True) if g is not None)
    assume(isinstance(loss, Tensor) and loss.requires_grad)
    return auto.grad(loss, leaves, allow_unused=True)


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3])
@properties
@given(program=programs())
def test_every_element_is_what_elements_give_one_by_one(order, program):
    """Terms of a sum may cancel out. They are about as large as the gradients up to this order, or as small numbers."""
    every = [g for each in range(order) for leaf in program.by_elements(each + 1) for g in leaf if g is not None]
    size = max([1e-3, *map(abs, filter(isfinite, every))])
    for ours, expected in zip(gradients(ignoring, program, order), program.by_elements(order), strict=True):
        numbers = [0.0] * 4 if ours is None else ours.tolist()
        for o, e in zip(numbers, [0.0 if e is None else e for e in expected], strict=True):
            assert isfinite(o) == isfinite(e)
            assert not isfinite(o) or math.isclose(o, e, rel_tol=1e-9, abs_tol=1e-9 * size)


@pytest.mark.slow
@properties
@given(program=programs())
def test_the_bits_of_the_second_order_are_plain_pytorchs_where_it_is_finite(program):
    ours, theirs = gradients(ignoring, program, 2), gradients(torch.autograd, program, 2)
    for a, b in zip(ours, theirs, strict=True):
        for o, t in zip(a.tolist(), b.tolist(), strict=True) if a is not None and b is not None else ():
            assert not isfinite(t) or o == t


# Layers, on a batch half of which is NaN: as on the other half alone.

LAYERS = {
    "relu, softplus": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softplus()),
    "convolution": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2)),
    "group norm": lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh()),
    "transformer": lambda: nn.TransformerEncoderLayer(3, 1, 8, dropout=0.0, batch_first=True),
}
SHAPES = {"convolution": (4, 2, 6, 6), "group norm": (4, 2, 6, 6), "transformer": (4, 5, 3)}


def penalties(auto, layer, rows):
    """The slope at the first two rows, how a penalty on it changes with everything, and that once more."""
    rows = rows.clone().requires_grad_()
    everything = [rows, *layer.parameters()]
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch has no second derivative of the other kernels
        used = layer(rows)[:2]
    (slope,) = auto.grad(used.square().sum(), [rows], create_graph=True)
    loss = slope[:2].tanh().sum() + used.sum()
    second = auto.grad(loss, everything, create_graph=True, allow_unused=True)
    loss = sum(g.square().sum() for g in second if g is not None and g.requires_grad)
    third = auto.grad(loss, everything, allow_unused=True)
    return [None if g is None else g.detach() for g in (slope, *second, *third)]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_to_third_order(name):
    torch.manual_seed(0)
    layer, rows = LAYERS[name]().double(), torch.randn(SHAPES.get(name, (4, 3)), dtype=torch.float64)
    bad = rows.clone()
    bad[2:] = math.nan
    alone = penalties(torch.autograd, layer, rows[:2])
    ours, plain = penalties(ignoring, layer, bad), penalties(torch.autograd, layer, bad)
    assert any(g is not None and bool(g.isnan().any()) for g in plain)
    for o, a in zip(ours, alone, strict=True):
        assert (o is None) == (a is None)
        if o is not None:
            assert type(o) is Tensor
            if o.shape != a.shape:  # of the rows: the bad ones get 0
                assert not o[2:].any()
            torch.testing.assert_close(o[: len(a)], a, rtol=1e-9, atol=1e-9)


# Functions whose formula PyTorch changes for a subclass, or that are differentiated step by step.


APART = {
    "det": torch.linalg.det,
    "inv": torch.linalg.inv,
    "logcumsumexp": lambda x: (x * 1).logcumsumexp(1),
    "cumprod behind infinite slopes": lambda x: x.abs().sqrt().cumprod(0),
    "scatter_reduce": lambda x: torch.zeros_like(x).scatter_reduce(1, torch.zeros_like(x).long(), x * x, "amax"),
    "index_reduce": lambda x: torch.zeros_like(x).index_reduce(
        1, torch.tensor([0, 0, 1]), x * x, "amin", include_self=False
    ),
    "the largest norm": lambda x: torch.linalg.vector_norm(x * x, math.inf, dim=2),
    "logit": lambda x: (x / 2).logit(),
}


def penalty(auto, function, x, used):
    """The slope of the used outputs, and how a penalty on it changes."""
    x = x.clone().requires_grad_()
    output = function(x)[used]
    weights = torch.linspace(1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    (slope,) = auto.grad((output.real * weights).sum(), x, create_graph=True)
    return slope.detach(), *auto.grad(slope[used].abs().square().sum(), x)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    "name, bad, dtype",
    [
        *((name, math.nan, torch.float64) for name in APART),
        *((name, 0.0, torch.float64) for name in APART if name != "inv"),  # which refuses a singular matrix
        *((name, math.nan, torch.complex128) for name in ("det", "inv")),
    ],
)
def test_an_ignored_matrix_or_row_stays_out_of_the_second_derivative(name, bad, dtype):
    x = torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.1
    x[3] = bad
    used = slice(0, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ignoring")
        ours = penalty(ignoring, APART[name], x, used)
    alone = penalty(torch.autograd, APART[name], x[used], used)
    for o, a in zip(ours, alone, strict=True):
        assert type(o) is Tensor
        assert not o[3].any()
        torch.testing.assert_close(o[used], a)


X = torch.tensor([[1.0, -4.0], [2.0, -1.0]], dtype=torch.float64)
UNREAD = {
    # A function that ignores the root of x[0] = 0, which has no slope, and the same function without this root.
    "copysign": (lambda x: torch.copysign((x + 1) ** 2, x.sqrt()), lambda x: (x + 1) ** 2),
    "solve_triangular": (
        lambda x: torch.linalg.solve_triangular(x.sqrt()[[1, 0, 1, 1]].view(2, 2), X, upper=False),
        lambda x: torch.linalg.solve(x[1].sqrt() * torch.ones(2, 2, dtype=torch.float64).tril(), X),
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_a_function_did_not_read_is_a_constant_for_the_second_derivative(name):
    def penalized(auto, function):
        x = torch.tensor([0.0, 4.0], dtype=torch.float64, requires_grad=True)
        (slope,) = auto.grad(function(x).sum() + x.square().sum(), x, create_graph=True)
        return [slope.detach(), *auto.grad((slope * slope).sum(), x)]

    unread, alone = UNREAD[name]
    torch.testing.assert_close(penalized(ignoring, unread), penalized(torch.autograd, alone))


def test_a_recorded_gradient_has_the_bits_of_one_that_is_not():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = torch.sgn(2 + x.sqrt())[1:].sum()
    for gradient in (torch.autograd.grad, ignoring.grad):
        for records in (True, False):
            assert gradient(loss, x, retain_graph=True, create_graph=records)[0].add(0).tolist() == [0, 0]


GATES = [torch.relu, F.relu6, F.hardtanh, F.hardshrink, F.softshrink, F.l1_loss, torch.abs]
GATES += [lambda y: y.norm(1), lambda y: y.norm(math.inf), lambda y: F.threshold(y, 0, 0)]
GATES += [lambda y: F.leaky_relu(y.expand(2))[:1], lambda y: F.rrelu(y.expand(2))[:1]]


@pytest.mark.filterwarnings("ignore:ignoring could not follow LinalgVectorNorm")  # it needs its input, by a hook
@pytest.mark.parametrize("hooks", [nullcontext, lambda: saved_tensors_hooks(torch.clone, torch.clone)])
@pytest.mark.parametrize("gate", GATES)
def test_a_nan_that_a_gate_used_stays_in_the_second_derivative(gate, hooks):
    """The gate's derivative does not depend on its input, unless the input is NaN."""
    x = torch.tensor([math.nan, math.nan, 0.5], requires_grad=True)
    target = [torch.ones(1)] if gate is F.l1_loss else []
    with hooks():
        (slope,) = ignoring.grad(gate(-(x * x)[:1], *target).sum(), x, create_graph=True)
        assert ignoring.grad(slope.sum(), x)[0].isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.eig])
def test_a_loss_that_depends_on_the_phase_of_a_vector_is_refused_as_by_pytorch(function):
    x = torch.tensor([[2, 1j], [-1j, 3]], requires_grad=True)
    for gradient in (torch.autograd.grad, ignoring.grad):
        with pytest.raises(RuntimeError, match="specified up to multiplication"):
            gradient(function(x)[1][:, 0].real.sum(), x)


def recorded(x):
    return ignoring.grad(guard(x).sum(), [x], create_graph=True)[0]


def test_what_a_hook_sends_to_an_ignored_element_does_not_reach_the_second_derivative():
    x = torch.tensor([0.0, math.nan], requires_grad=True)
    (slope,) = ignoring.grad(torch.where(x < 2, x.exp(), 0.0).sum(), [x], create_graph=True)
    slope.grad_fn.next_functions[0][0].register_prehook(lambda gradients: tuple(g + 1 for g in gradients))
    assert ignoring.grad(slope[:1].sum(), [x])[0].tolist() == [2, 0]


def test_plain_backward_over_the_record_is_plain_pytorchs():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    slope = recorded(x)
    assert type(slope) is Tensor and slope.grad_fn is not None
    slope.sum().backward()
    theirs = torch.tensor([1.0, 100.0], requires_grad=True)
    torch.autograd.grad(guard(theirs).sum(), [theirs], create_graph=True)[0].sum().backward()
    assert type(x.grad) is Tensor
    torch.testing.assert_close(x.grad, theirs.grad, rtol=0, atol=0, equal_nan=True)
    assert x.grad.isnan().tolist() == [False, True]


def test_the_record_is_let_go_with_its_result():
    def one():
        x = torch.tensor([1.0, 100.0], requires_grad=True)
        slope = recorded(x)
        ignoring.grad(slope.sum(), [x])
        return weakref.ref(slope)

    gone = one()
    gc.collect()
    assert gone() is None
