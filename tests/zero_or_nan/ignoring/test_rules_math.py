"""Rules of linear algebra, norms, transforms and products: the gradient is that of the used part alone."""

from functools import partial
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from alone import assert_fixed, gradients, numbers

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import function_of
from zero_or_nan.ignoring import FUNCTIONS, Cotangent


def positive(*shape):
    matrix = numbers(*shape)
    return matrix @ matrix.mT + 3 * torch.eye(shape[-1])


def reflectors(rows, columns):
    return torch.geqrf(numbers(rows, columns))


first, rest = slice(None, 2), slice(2, None)
columns = (slice(None), first)
corner = (first, first)

HIDDEN = torch.zeros(2, 2, 4, 4, dtype=torch.bool)
HIDDEN[..., 3] = HIDDEN[0, :, 1, 0] = True

FAMILIES = {
    # name: function, inputs, which input is poisoned and where, which outputs the loss uses
    "solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        [positive(4, 4), numbers(4, 3)], 1, (..., 2), columns,
    ),
    "solve_triangular, with ones": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, left=False, unitriangular=True),
        [positive(4, 4), numbers(3, 4)], 0, (..., 3), columns,
    ),
    "solve_triangular, all of two batches": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), [positive(2, 2, 4, 4), numbers(2, 2, 4, 3)], 0,
        (..., 0, slice(None)), (..., rest, slice(None)),
    ),
    "triangular_solve": (
        lambda a, b: torch.triangular_solve(b, a, upper=True, transpose=True)[0],
        [positive(4, 4), numbers(4, 3)], 0, (..., 3), first,
    ),
    "cholesky_solve": (torch.cholesky_solve, [numbers(4, 3), positive(4, 4).tril()], 0, (..., 2), columns),
    "lu_solve": (
        lambda b, a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), [numbers(4, 3), positive(4, 4)], 0, (..., 2),
        columns,
    ),
    "lu_solve, adjoint, from the right": (
        lambda b, a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, left=False, adjoint=True),
        [numbers(3, 4), numbers(4, 4)], 0, 2, first,
    ),
    "cholesky": (lambda a: torch.linalg.cholesky_ex(a)[0], [positive(4, 4)], 0, (rest, rest), columns),
    "cholesky_inverse": (
        lambda a: torch.cholesky_inverse(a.tril()), [positive(4, 4)], 0, (rest, 0), (slice(1, None), slice(1, None)),
    ),
    "lu": (lambda a: torch.linalg.lu(a)[2], [positive(4, 4)], 0, (..., 3), (slice(None), slice(None, 3))),
    "lu_factor": (lambda a: torch.linalg.lu_factor_ex(a)[0], [numbers(5, 3)], 0, (..., 2), corner),
    "qr": (lambda a: torch.linalg.qr(a)[0], [numbers(5, 4)], 0, (..., rest), columns),
    "qr, last column": (lambda a: torch.linalg.qr(a)[0], [numbers(3, 3)], 0, (2, 2), ...),
    "householder_product": (torch.linalg.householder_product, [*reflectors(5, 4)], 0, (..., rest), columns),
    "ormqr": (
        lambda a, tau, c: torch.ormqr(a, tau, c, left=False), [*reflectors(4, 4), numbers(3, 4)], 0, (3, 2), columns
    ),
    "weight_norm": (lambda w, g: torch._weight_norm(w, g, 0), [numbers(4, 3, 2), numbers(4, 1, 1)], 0, 2, first),
    "weight_norm, by columns": (
        lambda w, g: torch._weight_norm(w, g, 1), [numbers(4, 4), numbers(1, 4)], 0, (..., 3), columns
    ),
    "softmax with a mask": (lambda x: torch._masked_softmax(x, HIDDEN, -1, 2), [numbers(2, 2, 4, 4)], 0, 1, 0),
    "softmax with a mask, hidden elements": (
        lambda x: torch._masked_softmax(x.exp(), HIDDEN, -1, 2), [numbers(2, 2, 4, 4)], 0, (..., 3), ...,
    ),
    "convolution in time": (
        lambda x, k, b: torch.conv_tbc(x, k, b, 1), [numbers(5, 3, 4), numbers(2, 4, 3), numbers(3)], 0,
        (slice(None), 2), columns,
    ),
    "convolution by the name of its kernel": (
        lambda x, k, b: torch._C._nn.thnn_conv2d(x, k, (3, 3), b, 2, 1),
        [numbers(3, 2, 5, 5), numbers(4, 2, 3, 3), numbers(4)], 0, 2, first,
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3, 4), w, b), [numbers(6, 3, 4), numbers(3, 4), numbers(3, 4)], 0, rest, first
    ),
    "layer_norm, parts of many rows": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b), [numbers(1200, 4), numbers(4), numbers(4)], 0, rest, (first, 0),
    ),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), [numbers(5)], 0, rest, first),
    "cumprod": (lambda x: x.cumprod(0), [numbers(5)], 0, rest, first),
    "cumprod with a 0": (lambda x: x.cumprod(0), [torch.tensor([2.0, 3.0, 0.0, 4.0, 5.0])], 0, 4, slice(4)),
    "solve": (lambda a, b: torch.linalg.solve_ex(a, b)[0], [positive(3, 4, 4), numbers(3, 4, 2)], 0, 2, first),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b), [numbers(3, 4, 5), numbers(4), numbers(4)], 0, (0, 3),
        (slice(None), first),
    ),
    "instance_norm": (F.instance_norm, [numbers(3, 4, 5)], 0, (..., 3, 1), (slice(None), first)),
    "cdist": (torch.cdist, [numbers(4, 3), numbers(5, 3)], 0, 2, first),
    "xlogy": (torch.xlogy, [numbers(4), numbers(4).abs()], 1, 3, slice(None, 3)),
}  # fmt: skip


LINEAR = {"lu", "qr, last column", "softmax with a mask, hidden elements"}
"""Whose outputs are linear in the poisoned column, or don't depend on it: it has a gradient, whatever is in it."""


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("poison", [nan, inf])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_is_that_of_the_used_part_alone_and_a_used_nan_stays(name, poison):
    function, clean, number, where, used = FAMILIES[name]
    poisoned = [tensor.clone() for tensor in clean]
    poisoned[number][where] = poison
    plain = assert_fixed(function, poisoned, clean, used, 1e-3, 1e-4)
    for masked in gradients(partial(ignoring.grad, ignored="masked"), function, poisoned, used):
        assert not masked.get_data()[~masked.get_mask()].any()
    if poison != poison:
        assert not all(exact.isfinite().all() for exact in plain)
        if name not in LINEAR:
            of_all = [gradients(auto.grad, function, poisoned, ...) for auto in (ignoring, torch.autograd)]
            assert all(torch.equal(ours.isfinite(), exact.isfinite()) for ours, exact in zip(*of_all, strict=True))


UNDEFINED = {
    # Used and without a derivative; next to it something that is ignored, so that backward has a mask.
    "a root of 0 in a Cholesky factor": (
        lambda a: torch.linalg.cholesky_ex(a)[0], torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, nan]]),
        (slice(0, 2), slice(0, 2)),
    ),
    "a pivot that is 0": (
        lambda a: torch.linalg.lu_factor_ex(a)[0], torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, nan]]),
        (slice(0, 3), slice(0, 2)),
    ),
    "a column without a direction of its own": (
        lambda a: torch.linalg.qr(a)[0],
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, nan], [0.0, 0.0, 0.0]]), (slice(0, 4), slice(0, 2)),
    ),
    "a singular triangular matrix": (
        lambda a: torch.linalg.solve_triangular(a, torch.eye(3), upper=False),
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), (slice(0, 2), slice(0, 2)),
    ),
    "a layer norm of inf": (
        lambda x: F.layer_norm(x, (3,), torch.ones(3)), torch.tensor([[1.0, 2.0, inf], [nan, nan, nan]]), 0
    ),
    "a sum of exponentials with inf": (lambda x: x.logcumsumexp(0), torch.tensor([inf, 1.0, nan]), slice(0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_undefined_and_used_stays_so(name):
    function, x, used = UNDEFINED[name]
    (ours,) = gradients(ignoring.grad, function, [x], used)
    (plain,) = gradients(torch.autograd.grad, function, [x], used)
    assert not ours.isfinite().all()
    assert torch.equal(ours[plain.isfinite()], plain[plain.isfinite()])


SQUARES = torch.tensor([0.0, 1.0, 4.0])
NO_PATH = {
    # Outputs without a path to the element 0, whose root has no slope.
    **{
        f"pdist, p={p}": (lambda x, p=p: F.pdist(x.sqrt()[:, None].expand(3, 2), p)[2:], SQUARES)
        for p in (0.0, 1.0, 2.0, 3.0, inf)
    },
    "householder_product": (
        lambda x: torch.linalg.householder_product(x.sqrt()[:, None], torch.tensor([1.2]))[::2],
        torch.tensor([1.0, 0.0, 4.0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_PATH)
def test_an_infinite_slope_without_a_path_to_the_loss(name):
    function, x = NO_PATH[name]
    (ours,) = gradients(ignoring.grad, function, [x], ...)
    (plain,) = gradients(torch.autograd.grad, function, [x], ...)
    assert torch.equal(ours.isfinite(), torch.ones(3, dtype=torch.bool)) and not plain.isfinite().all()
    assert not ours[x == 0].any() and torch.equal(ours[x != 0], plain[x != 0])


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, inf])
@pytest.mark.parametrize("distances", [F.pdist, lambda x, p: torch.cdist(x[:1], x[1:], p)[0]])
@pytest.mark.parametrize("row", [(nan, 1.0), (inf, 1.0), (inf, -inf), (0.0, 1.0)])
def test_a_distance_of_a_used_pair_is_as_undefined_as_that_of_the_pair_alone(row, distances, p):
    pair, lost = torch.tensor([row, (0.0, 0.5)]), torch.tensor([[nan, nan]])
    (alone,) = gradients(torch.autograd.grad, lambda x: distances(x, p), [pair], slice(1))
    (ours,) = gradients(ignoring.grad, lambda x: distances(torch.cat([x, x[1:] * lost]), p), [pair], slice(1))
    torch.testing.assert_close(ours, alone, equal_nan=True)


SHAPES = [(2, 4, 4), (2, 5, 3), (3, 5), (1, 1)]
STEPWISE = [
    *[(torch.linalg.lu, [shape]) for shape in SHAPES],
    *[(lambda x: torch.linalg.lu_factor_ex(x)[:1], [shape]) for shape in SHAPES],
    *[(torch.linalg.qr, [shape]) for shape in SHAPES],
    *[(torch.linalg.householder_product, shapes) for shapes in [[(2, 5, 3), (2, 3)], [(5, 3), (2,)], [(4, 4), (4,)]]],
    *[(lambda a, tau, c, t=t: torch.ormqr(a, tau, c, transpose=t), [(5, 3), (3,), (5, 4)]) for t in (False, True)],
    *[(lambda a, tau, c, t=t: torch.ormqr(a, tau, c, False, t), [(5, 3), (3,), (4, 5)]) for t in (False, True)],
    *[(lambda x, dim=dim: x.logcumsumexp(dim), [(3, 4)]) for dim in (0, -1)],
    *[(lambda x, dim=dim: x.cumprod(dim), [(3, 4)]) for dim in (0, -1)],
    (lambda x: x.logcumsumexp(0), [()]),
    (lambda x: x.cumprod(0), [()]),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("function", "shapes"), STEPWISE)
def test_a_derivative_step_by_step_is_that_of_pytorch(function, shapes, dtype):
    inputs = [numbers(*shape, dtype=dtype, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    outputs = function(*inputs)
    outputs = [o for o in (outputs if isinstance(outputs, tuple) else (outputs,)) if o.requires_grad]
    if dtype.is_complex and function is torch.linalg.qr and shapes[0][-1] > shapes[0][-2]:
        pytest.skip("PyTorch has no gradient there")
    compare(outputs, inputs)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 1)])
def test_the_same_of_cholesky_and_of_an_inverse_by_cholesky(shape, upper):
    for dtype in (torch.float64, torch.complex128):
        x = numbers(*shape, dtype=dtype)
        x = (x @ x.mH + torch.eye(shape[-1])).requires_grad_()
        factor = torch.linalg.cholesky_ex(x, upper=upper)[0]
        if not dtype.is_complex:
            compare([factor], [x])
        factor = factor.detach().requires_grad_()
        # PyTorch hands numbers to the triangle that it does not read.
        compare([torch.cholesky_inverse(factor, upper=upper)], [factor], torch.triu if upper else torch.tril)


def compare(outputs, inputs, part=torch.as_tensor):
    given = [numbers(*o.shape, dtype=o.dtype, seed=9) for o in outputs]
    wanted = torch.autograd.grad(outputs, inputs, given, retain_graph=True)
    node = outputs[0].grad_fn
    with torch.no_grad():
        ours = FUNCTIONS[function_of(node.name())].derivative(node, [Cotangent(cotangent) for cotangent in given])
    for result, expected in zip(ours, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(result), part(expected))


def test_a_derivative_that_can_not_be_taken_step_by_step_is_told_of():
    x = (numbers(3, 3, dtype=torch.complex64) * 0.1 + 2 * torch.eye(3)).requires_grad_()
    with torch.no_grad():
        x[2, 2] = nan
    with pytest.warns(UserWarning, match="LinalgCholeskyEx"):
        ignoring.grad(torch.linalg.cholesky_ex(x)[0][:2, :2].abs().sum(), x)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("solve", ["_linalg_solve_ex", "linalg_lu_solve"])
def test_a_matrix_that_is_not_finite_leaves_ignored_columns_out(solve, left):
    used = torch.tensor([[True, False], [True, False]])
    used = used if left else used.mT
    given = Cotangent(used.float(), used)
    factors = (torch.full((2, 2), nan), torch.tensor([1, 2], dtype=torch.int32))
    op = getattr(torch.ops.aten, solve)
    solution = op(factors[0], given, left=left)[0] if solve == "_linalg_solve_ex" else op(*factors, given, left=left)
    assert torch.equal(solution.mask, used) and torch.equal(solution.value.isnan(), used)


# Numbers with a scale that is learnt.


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantized_with_a_scale_that_is_learnt(axis):
    """Clipped values, among them NaN, are ignored, and so is a channel: its scale is NaN, and its values' root."""
    channels = 1 if axis is None else 3
    x = torch.tensor([[0.25, 4.0, 0.0], [0.16, 1e6, 0.0], [nan, 2.25, 0.5]], requires_grad=True)
    scale, divisor = torch.full((channels,), 0.1).requires_grad_(), torch.ones(channels)
    zero = torch.zeros(channels, requires_grad=True)
    kept = torch.ones(3, 3, dtype=torch.bool)
    if axis is None:
        kept[1] = False
        kept[0, 2] = False
        out = torch._fake_quantize_learnable_per_tensor_affine(x.sqrt(), scale, zero, -8, 8, 1.0)
    else:
        kept.select(axis, 1).fill_(False)
        kept[0, 2] = kept[1, 2] = False
        divisor[1] = scale.data[1] = 0
        out = torch._fake_quantize_learnable_per_channel_affine(x.sqrt(), scale / divisor, zero, axis % 2, -8, 8, 1.0)
    ignoring.backward(out[kept].sum())
    opened = kept & (x.detach().sqrt() < 0.8)
    slopes = torch.where(opened, 0.5 / x.detach().sqrt(), 0.0)
    assert torch.allclose(x.grad, slopes)
    per_entry = torch.where(opened, (out.detach() - x.detach().sqrt()) / 0.1, torch.where(x.isnan(), -8.0, 8.0))
    per_entry = torch.where(kept, per_entry, 0.0).detach()
    wanted = per_entry.sum().view(1) if axis is None else per_entry.sum(1 - axis % 2)
    assert torch.allclose(scale.grad, wanted, atol=1e-4) and zero.grad.isfinite().all()
    assert axis is None or scale.grad[1] == zero.grad[1] == 0


def test_what_is_clipped_is_ignored_where_all_is_used():
    x = torch.tensor([0.25, -1.0], requires_grad=True)
    scale, zero = torch.tensor([0.1]), torch.tensor([0.0])
    ignoring.backward(torch._fake_quantize_learnable_per_tensor_affine(x.sqrt(), scale, zero, -8, 8, 1.0).sum())
    assert x.grad.tolist() == [1.0, 0.0]
