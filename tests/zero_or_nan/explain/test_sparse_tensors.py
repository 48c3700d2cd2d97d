"""Sparse tensors: what they store is looked at, and followed as it is in dense ones."""

from math import nan

import pytest
import torch
from origins import report_of, told
from torch import nn

from zero_or_nan import explain

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # they are in beta state, PyTorch says

USES = {
    "product": lambda a, w: a @ w,
    "dense": lambda a, w: a.to_dense() * w,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_data(layout, use):
    """NaN in the data is bad input; nothing else is told."""
    adjacency = torch.tensor([[1.0, nan, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]]).to_sparse(layout=layout)
    weight = torch.ones(3, 3, requires_grad=True)
    (origin,) = report_of(lambda: USES[use](adjacency, weight).sum().backward())
    assert (origin.kind, origin.phase, origin.count) == ("bad input", "forward", 1)
    assert "the loss" in origin.reached and "nan in adjacency" in origin.operands
    assert (origin.entries, origin.shape) == (([(2,)], (4,)) if layout is torch.sparse_csc else ([(0, 1)], (3, 3)))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_what_is_made_before_and_in_a_sparse_tensor(layout):
    """A logarithm of 0 becomes a stored element; a sparse product overflows."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    report = report_of(lambda: (x.log().diag().to_sparse(layout=layout) @ torch.ones(2, 1)).sum().backward())
    assert told(report) == [("undefined", "forward", "log")]
    assert "to_sparse" in report.origins[0].path and {"x", "the loss"} <= set(report.origins[0].reached)

    weight = torch.ones(2, 1, requires_grad=True)
    with explain() as report:
        large = torch.eye(2).to_sparse(layout=layout) * 3e38
        (large * 2 @ weight).sum().backward()
    assert told(report) == [("overflow", "forward", "mul")]
    assert report.origins[0].entries == [(0, 0), (1, 1)]


@pytest.mark.parametrize("change", ["mul_", "add_", "zero_", "copy_"])
def test_in_place(change):
    """Sparse tensors that are changed may have their numbers elsewhere afterwards."""
    sparse = torch.eye(2).to_sparse()
    weight = torch.ones(2, 1, requires_grad=True)
    other = {"mul_": [2], "add_": [torch.eye(2).to_sparse()], "copy_": [torch.eye(2).to_sparse()], "zero_": []}[change]
    with explain() as report:
        sparse.mul_(3e38).mul_(2)
        getattr(sparse, change)(*other)
        (sparse @ weight).sum().backward()
    assert told(report) == ([("overflow", "forward", "mul")] if change in ("mul_", "add_") else [])


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_of_embeddings(make):
    """A sparse gradient is reached; the loss is finite."""
    table = make(4, 2, sparse=True)
    words = torch.tensor([[1, 2]])
    nn.init.zeros_(table.weight)
    with explain() as report:
        rows = table(words)
        torch.where(rows > 0, rows.log(), rows).sum().backward()
    assert told(report) == [("contaminated", "forward", "log")] and report.origins[0].reached == ["weight"]
