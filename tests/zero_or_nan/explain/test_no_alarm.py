"""No false alarm: where nothing that is not finite reached the loss or a gradient, there is nothing to tell.

Nor does ordinary code get a warning, or another result.
"""

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from origins import report_of
from sample import examples
from torch import nn

from tests.zero_or_nan.ignoring.programs import PLAIN, SIZE, programs
from zero_or_nan import explain, ignoring
from zero_or_nan.explain.program.tensors import are_finite

drawn = settings(
    deadline=None, derandomize=True, database=None, max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def gradients(program, backward):
    """The loss of a random program, and the gradients that a backward pass gives."""
    leaves, loss = program.by_pytorch(torch.float32)
    backward(loss)
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


@given(program=programs())
@drawn
def test_random_programs(program):
    """Something is told just where the loss or a gradient is not finite: contaminations, if `ignoring` fixes all."""
    for leaves in (program.leaves, [PLAIN[:SIZE], PLAIN[-SIZE:]]):
        each = replace(program, leaves=leaves)
        with explain() as report:
            found = gradients(each, torch.Tensor.backward)
        assert report.ok == are_finite(found), report
        if not report.ok:
            fixed = are_finite(gradients(each, ignoring.backward))
            assert fixed == ({origin.kind for origin in report} == {"contaminated"}), report


CODE = {}


def code(function):
    CODE[function.__name__] = function
    return function


@code
def a_view_of_a_leaf_under_no_grad():
    w = torch.randn(3, 3, requires_grad=True)
    with torch.no_grad():
        w[0].zero_()
        w[1].mul_(2)
        w.view(-1)[:2].copy_(torch.ones(2))
        row = w[2]
        w.add_(1)
    (w * 2).sum().backward()
    return [w, w.grad, row.detach()]


@code
def batches_of_vectors():
    x = torch.ones(3, requires_grad=True)
    y = x.sqrt() * 2
    slopes = torch.autograd.functional.jacobian(torch.exp, torch.ones(3), vectorize=True)
    return [*torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True), slopes]


@code
def the_fast_paths_of_modules():
    """They give 0 in padded rows, where the others compute something."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    with torch.inference_mode():
        return [model(torch.randn(2, 3, 8), src_key_padding_mask=torch.tensor([[False, False, True]] * 2)).clone()]


def a_gradient_that_is_asked_for(layout):
    x = getattr(torch.eye(3) + 1, f"to_{layout}")().requires_grad_()
    y = x.to_dense().sqrt().sum()
    return [gradient.to_dense() for gradient in torch.autograd.grad(y, x)]


for layout in ("sparse", "sparse_csr", "mkldnn"):
    if layout != "mkldnn" or torch.backends.mkldnn.is_available():
        CODE[f"a leaf as {layout}"] = lambda layout=layout: a_gradient_that_is_asked_for(layout)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("name", CODE)
def test_it_is_left_alone(name):
    torch.manual_seed(0)
    plain = [tensor.detach().clone() for tensor in CODE[name]()]
    torch.manual_seed(0)
    with warnings.catch_warnings(), explain() as report:
        result = CODE[name]()
    assert report.ok, report
    assert all(torch.equal(one, other) for one, other in zip(plain, result, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_trace_has_the_users_operators_alone():
    with explain():
        traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(2, 4))
    operators = [node.kind() for node in traced.inlined_graph.nodes() if node.kind() != "prim::GetAttr"]
    assert operators == ["aten::linear", "aten::relu"]


def test_a_batch_of_vectors_is_not_said_to_be_finite():
    x = torch.zeros(2, requires_grad=True)
    report = report_of(lambda: torch.autograd.grad(x.sqrt(), x, torch.eye(2), is_grads_batched=True))
    assert report.notes == ["a backward pass for a batch of vectors (is_grads_batched, vectorize) was not looked into"]


@pytest.mark.parametrize(("at", "is_used"), [("leaf", True), ("inside", False)])
def test_a_gradient_at_an_edge_of_the_graph(at, is_used):
    """As pipelines ask for it."""
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with explain() as report:
        y = x * 1
        loss = y.log().sum() if is_used else torch.where(y > 0, y.log(), 0).sum()
        edge = torch.autograd.graph.get_gradient_edge(x if at == "leaf" else y)
        (gradient,) = torch.autograd.grad(loss, edge)
    assert not gradient.isfinite().all()
    (origin,) = report
    assert (origin.kind, origin.operator) == ("undefined" if is_used else "contaminated", "log")
    assert origin.reached[-1] == ("x" if at == "leaf" else "the gradient at mul")
    assert origin.fixed in (True, None) or is_used
