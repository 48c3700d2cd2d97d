"""Products with a sparse factor: what no stored element meets is ignored, and what one stored as 0 meets is used."""

from math import exp, inf, nan

import pytest
import torch
from telling import told

from zero_or_nan import ignoring

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # they are in beta state, PyTorch says

PLACES = [(0, 0), (0, 1), (1, 2), (3, 0), (3, 2)]  # the third row is empty, and so is the last column
WEIGHTS = [1.0, 0.0, 3.0, 2.0, -1.0]
LAYOUTS = ["coo", "uncoalesced", "csr", "csc"]

PRODUCTS = {
    "@": lambda a, y: a @ y,
    "sparse.mm": torch.sparse.mm,
    "mv": lambda a, y: torch.stack([torch.mv(a, column) for column in y.t()], 1),
    "dense first": lambda a, y: (y.t() @ a.t()).t(),
    "bmm": lambda a, y: torch.bmm(torch.stack([a, a]), torch.stack([y, y]))[0],
    **{f"sparse.mm, {r}": lambda a, y, r=r: torch.sparse.mm(a, y, r) for r in ("sum", "mean", "amax", "amin")},
}


def sparse(weights, layout):
    """The matrix with these weights in the places; uncoalesced, each is stored in two halves."""
    places = torch.tensor(PLACES).t()
    if layout in ("coo", "uncoalesced"):
        twice = 2 if layout == "uncoalesced" else 1
        return torch.sparse_coo_tensor(places.repeat(1, twice), weights.repeat(twice) / twice, (4, 4))
    order = sorted(range(5), key=lambda n: PLACES[n] if layout == "csr" else PLACES[n][::-1])
    lines, within = places[:, order] if layout == "csr" else places[:, order].flip(0)
    starts = torch.searchsorted(lines.contiguous(), torch.arange(5))
    return torch.sparse_compressed_tensor(
        starts, within.contiguous(), weights[order], (4, 4), layout=getattr(torch, f"sparse_{layout}")
    )


def gradients(loss, leaves):
    """Ours, those of plain PyTorch, and what was warned of."""
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    ours, messages = told(lambda: ignoring.grad(loss, leaves))
    return ours, plain, messages


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_what_no_stored_element_meets_is_ignored(product, layout, learned):
    """Of the used rows the first has two elements, one of them 0, and the third has none."""
    x = torch.tensor([[1.0, 2.0], [0.5, 1.0], [100.0, 100.0], [nan, 100.0]], requires_grad=True)
    weights = torch.tensor([0.1, -inf, 100.0, 0.3, 100.0] if learned else WEIGHTS, requires_grad=learned)
    by_weight = weights.exp() if learned else weights
    leaves = [x, weights] if learned else [x]
    try:
        loss = PRODUCTS[product](sparse(by_weight, layout), x.exp())[[0, 2]].sum()
        ours, plain, messages = gradients(loss, leaves)
    except RuntimeError:
        pytest.skip("this PyTorch has no such product")
    scale = 0.5 if product.endswith("mean") else 1.0
    expected_x, expected_weights = torch.zeros(4, 2), torch.zeros(5)
    expected_x[:2] = scale * by_weight.detach()[:2, None] * x.detach()[:2].exp()
    if product.endswith("amin"):
        expected_x[0] = 0
    elif learned:
        expected_weights[0] = scale * exp(0.1) * (exp(1) + exp(2))
    if product.endswith("amax"):
        expected_x[1] = 0
    assert ours[0].tolist() == [pytest.approx(row) for row in expected_x.tolist()] and not messages
    assert not learned or ours[1].tolist() == pytest.approx(expected_weights.tolist())
    assert plain[0].isnan().any()
    for one, other in zip(ours, plain, strict=True):
        assert one[other.isfinite()].equal(other[other.isfinite()])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", ["@", "mv", "dense first"])
def test_what_a_stored_0_meets_is_used(product, layout):
    x = torch.tensor([[1.0, 1.0], [100.0, 100.0], [1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    loss = PRODUCTS[product](sparse(torch.tensor(WEIGHTS), layout), x.exp())[[0]].sum()
    (ours,), _, messages = gradients(loss, [x])
    assert ours[1].isnan().all() and ours[0].isfinite().all() and ours[2:].tolist() == [[0, 0], [0, 0]] and not messages


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stored_nan_is_used_where_its_row_is(layout):
    for row, expected in ((0, [2.0, 0.0, 0.0, 0.0]), (1, [0.0, 0.0, nan, 0.0]), (3, [nan, 0.0, -inf, 0.0])):
        x = torch.ones(4, 1, requires_grad=True)
        weights = torch.tensor([2.0, 0.0, nan, nan, -inf])
        (ours,), _, _ = gradients(torch.mm(sparse(weights, layout), x * 1)[row].sum(), [x])
        assert ours[:, 0].tolist() == pytest.approx(expected, nan_ok=True)


def test_what_is_left_out_of_a_sparse_tensor_is_warned_of():
    x = torch.tensor([[4.0, 0.0]], requires_grad=True)
    first = torch.tensor([[1.0, 0.0]]).to_sparse().coalesce()
    (ours,), (plain,), warned = gradients((x.sqrt() + 1).to_sparse().sparse_mask(first).to_dense().sum(), [x])
    assert ours.isnan().any() and plain.isnan().any()
    assert "leaves out elements that a sparse tensor stores" in warned[0]


def test_a_backward_of_ones_own_may_leave_out_computed_zeros():
    """Unless its record says that it selects."""

    class Scaled(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x * torch.tensor([[1.0], [0.0]]))
        backward = staticmethod(lambda ctx, g: torch.tensor([1.0, 0.0]).diag().to_sparse() @ g)

    for selects, expected in ((False, [True, True]), (True, [True, False])):
        ignoring.function(Scaled, selects=selects)
        x = torch.ones(2, 1, requires_grad=True)
        (result,) = ignoring.grad(Scaled.apply(torch.cat([x, x])[:2]).sum(), x, ignored="masked")
        assert result.get_mask().flatten().tolist() == expected
    ignoring.FUNCTIONS.pop(Scaled)
