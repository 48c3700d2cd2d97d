"""Functions whose first outputs need only the first inputs, such as decompositions and running products.

Column j of a QR decomposition is computed from the columns up to j. PyTorch's derivative multiplies whole matrices and
solves whole systems, so a NaN of the last column meets the cotangents of the first column. The formulas here get only
what the loss needs. In place of the rest, they get an identity matrix or 0, on which nothing that counts depends.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...masks.cotangent import Cotangent, NotFollowed, is_finite, nothing, unwrap, zero_ignored
from ...masks.mask import anywhere, full
from ..graph import signed
from ..registry import derivative, rule


def _padded(matrices: Tensor, right: int = 0, below: int = 0) -> Tensor:
    """Matrices with columns of zeros to the right, rows of zeros below. `pad` of PyTorch 2.6 refuses an empty one."""
    matrices = torch.cat([matrices, matrices.new_zeros(*matrices.shape[:-1], right)], -1)
    return torch.cat([matrices, matrices.new_zeros(*matrices.shape[:-2], below, matrices.shape[-1])], -2)


def _mask(grad: Any) -> Tensor:
    """The mask of a cotangent."""
    return full(grad.mask, unwrap(grad))


def _numbers(grad: Any) -> Any:
    """A cotangent's value, because formulas here know their masks. If a formula is recorded, the cotangent itself."""
    is_recorded = torch.is_grad_enabled() or forward_ad.unpack_dual(grad).tangent is not None  # type: ignore[no-untyped-call]
    return grad if is_recorded else unwrap(grad)


def _counting(result: Any, counts: Tensor) -> Cotangent:
    """The result of a formula, with its mask."""
    if type(result) is Cotangent:
        return torch.where(counts, result, nothing(result))  # type: ignore[return-value]
    return Cotangent(torch.where(counts, result, 0), counts.expand(result.shape))


def _places(matrix: Tensor, dim: int) -> Tensor:
    """The numbers of the rows (dim=-2) or columns (dim=-1) of a matrix, from 1 on."""
    places = torch.arange(1, matrix.shape[dim] + 1, dtype=torch.int32, device=matrix.device)
    return places.unsqueeze(-1) if dim == -2 else places


def _last(mask: Tensor, dim: int) -> Tensor:
    """The number of the last row or column that counts, from 1 on; 0 if none counts."""
    return (mask * _places(mask, dim)).amax(dim, keepdim=True)


def _identity(like: Tensor) -> Tensor:
    """The identity matrix, also if a matrix is wide or tall."""
    return torch.eye(*like.shape[-2:], dtype=like.dtype, device=like.device)


@derivative("LinalgCholeskyEx")
def cholesky(node: Any, grads: Any) -> tuple[Any]:
    """An element of the factor L needs its row up to itself, and the whole rows up to the number of its column.

    Let P be the lower triangle of Lᴴ·gL, with its transpose above the diagonal. The gradient is L⁻ᴴ·P·L⁻¹ / 2.
    """
    (grad, *_), lower = grads, node._saved_L
    if lower.is_complex():
        raise NotFollowed("has a gradient that is not Hermitian, of which a part can't be replaced")
    if node._saved_upper:
        grad, lower = grad.mH, lower.mH
    of_row = _last(_mask(grad).tril(), -1)
    counts = (_places(lower, -1) <= of_row) | (_places(lower, -2) <= of_row.amax(-2, keepdim=True))
    counts = counts.tril()
    lower = torch.where(counts, lower, _identity(lower))
    product = lower.mH @ _numbers(grad)
    half = torch.linalg.solve_triangular(lower.mH, product.tril() + product.tril(-1).mH, upper=True)
    result = torch.linalg.solve_triangular(lower, half, upper=False, left=False) / 2
    return (_counting(result, counts | counts.mT),)


@derivative("CholeskyInverse")
def cholesky_inverse(node: Any, grads: Any) -> tuple[Any]:
    """An element of the inverse B needs the columns of the factor L from its own row or column on.

    The gradient is -B·(gB + gBᴴ)·B·L, and one triangle of L is not read.
    """
    (grad,), lower, inverse = grads, node._saved_self, node._saved_result
    if node._saved_upper:
        lower = lower.mH
    mask, grad = _mask(grad), _numbers(grad)
    kept = anywhere(mask | mask.mT, -2, keepdim=True).cumsum(-1) != 0
    counts = kept.expand(lower.shape).tril()
    lower = torch.where(counts, lower, _identity(lower))
    inverse = torch.where(kept & kept.mT, inverse, 0)
    result = -(inverse @ (grad + grad.mH) @ inverse @ lower)
    if node._saved_upper:
        result, counts = result.mH, counts.mT
    return (_counting(result, counts),)


@derivative("LinalgLuFactorEx")
def lu_factor(node: Any, grads: Any) -> tuple[Any]:
    """The LU decomposition with both factors in one matrix."""
    grad, packed = grads[0], node._saved_LU
    permutation = torch.lu_unpack(packed, node._saved_pivots, unpack_data=False)[0] if node._saved_pivot else None
    return (_eliminated(permutation, packed, packed, grad, grad),)


@derivative("LinalgLu")
def lu(node: Any, grads: Any) -> tuple[Any]:
    """The LU decomposition with a matrix for each factor."""
    permutation = node._saved_P if node._saved_pivot else None
    return (_eliminated(permutation, node._saved_L, node._saved_U, *grads[-2:]),)


def _eliminated(permutation: Tensor | None, lower: Tensor, upper: Tensor, grad_lower: Any, grad_upper: Any) -> Any:
    """The gradient of the matrix A = L·U, or of its rows in another order.

    An element of L needs its row up to itself, an element of U its column. Both need what was eliminated before: the
    first rows of L and columns of U. Let the first rows of L be the square L1 with L2 below, and the first columns of U
    the square U1 with U2 beside. Then the gradient of the first rows and columns of A is

        L1⁻ᴴ·(strict lower triangle of (L1ᴴ·gL1 - gU2·U2ᴴ) + upper triangle of (gU1·U1ᴴ - L2ᴴ·gL2))·U1⁻ᴴ

    To its right is L1⁻ᴴ·gU2, and below it gL2·U1⁻ᴴ.
    """
    rows, columns = lower.shape[-2], upper.shape[-1]
    count = min(rows, columns)
    lower, grad_lower = lower[..., :count], grad_lower[..., :count]
    upper, grad_upper = upper[..., :count, :], grad_upper[..., :count, :]
    of_row, of_column = _last(_mask(grad_lower).tril(-1), -1), _last(_mask(grad_upper).triu(), -2)
    column, row = of_row.amax(-2, keepdim=True), of_column.amax(-1, keepdim=True)
    in_lower = (_places(lower, -1) <= of_row) | (_places(lower, -2) <= torch.maximum(column, row))
    in_upper = (_places(upper, -2) <= of_column) | (_places(upper, -1) <= torch.maximum(column, row - 1))
    in_lower, in_upper = in_lower.tril(-1), in_upper.triu()
    first, below = torch.split(torch.where(in_lower, lower, _identity(lower)), [count, rows - count], -2)
    square, right = torch.split(torch.where(in_upper, upper, _identity(upper)), [count, columns - count], -1)
    grad_first, grad_below = torch.split(_numbers(grad_lower), [count, rows - count], -2)
    grad_square, grad_right = torch.split(_numbers(grad_upper), [count, columns - count], -1)
    inner = (first.mH @ grad_first - grad_right @ right.mH).tril(-1)
    inner = inner + (grad_square @ square.mH - below.mH @ grad_below).triu()
    top = torch.linalg.solve_triangular(first.mH, torch.cat([inner, grad_right], -1), upper=True, unitriangular=True)
    left = torch.cat([top[..., :count], grad_below], -2)
    left = torch.linalg.solve_triangular(square.mH, left, upper=False, left=False)
    result = torch.cat([left, _padded(top[..., count:], below=rows - count)], -1)
    counts = _padded(in_lower, right=columns - count) | _padded(in_upper, below=rows - count)
    rest = _counting(result, counts)
    if permutation is None:
        return rest
    return rest.gather(-2, permutation.real.argmax(-1, keepdim=True).expand(rest.shape))


@derivative("LinalgQr")
def qr(node: Any, grads: Any) -> tuple[Any]:
    """A direction (column of Q) needs the columns of A up to its own. A part (element of R) needs its row's direction.

    Let S be the upper triangle of gR·Rᴴ - Qᴴ·gQ, with its adjoint below the diagonal. The gradient of the columns whose
    directions are needed is (gQ + Q·S)·R⁻ᴴ. Each other column of A is only projected, so its gradient is Q·gR.
    """
    (grad_q, grad_r), q, r = grads, node._saved_Q, node._saved_R
    (rows, count), columns = q.shape[-2:], r.shape[-1]
    # In a real square matrix, the other directions determine the last one, so it does not depend on its own column.
    taken = count - 1 if rows == count and not q.is_complex() else count
    mask_q, mask_r = _mask(grad_q), _mask(grad_r).triu()
    deepest = torch.maximum(_last(anywhere(mask_q, -2, True), -1), _last(anywhere(mask_r, -1, True), -2))
    is_first = _places(r, -1) <= deepest.clamp(max=taken)
    is_projected = anywhere(mask_r, -2, True) & ~is_first
    counts = (is_first | is_projected).expand(*q.shape[:-1], columns)
    grad_q, grad_r = _numbers(grad_q), _numbers(grad_r)

    directions = _places(q, -1)
    projected = torch.where(directions <= _last(is_projected, -1), q, 0) @ torch.where(is_projected, r, 0)
    grad_parts = torch.where(is_projected, grad_r, 0)
    grad_q = torch.where(directions <= deepest, grad_q + projected @ grad_parts.mH, 0)
    q = torch.where(directions <= deepest, q, 0)
    result = q @ grad_parts
    if taken < count:
        last, grad_last = q[..., taken:], grad_q[..., taken:]
        q = q[..., :taken]
        grad_q = grad_q[..., :taken] - last * (q * grad_last).sum(-2, keepdim=True)
    first = is_first[..., :taken]
    r = torch.where(first, r[..., :taken, :taken], torch.eye(taken, dtype=r.dtype, device=r.device))
    triangle = (torch.where(first, grad_r[..., :taken, :taken], 0) @ r.mH - q.mH @ grad_q).triu()
    both = (triangle + triangle.mH) * (1 - torch.eye(taken, dtype=r.dtype, device=r.device) / 2)
    of_first = torch.linalg.solve_triangular(r.mH, grad_q + q @ both, upper=False, left=False)
    return (_counting(result + _padded(of_first, right=columns - taken), counts),)


@derivative("LinalgHouseholderProduct")
def householder_product(node: Any, grads: Any) -> tuple[Any, Any]:
    """The reflections applied to the identity. Later reflections leave its first columns unchanged."""
    vectors = node._saved_input
    identity = torch.eye(*vectors.shape[-2:], dtype=vectors.dtype, device=vectors.device).expand(vectors.shape)
    return _reflected(vectors, node._saved_tau, identity, grads[0], adjoint=False, identity=True)[:2]


@derivative("Ormqr")
def ormqr(node: Any, grads: Any) -> tuple[Any, Any, Any]:
    """The reflections applied to a matrix. From the right, they are applied to its adjoint.

    The gradient of the matrix alone is the cotangent with all reflections applied, unless one of them is not finite.
    """
    vectors, scales, other, (grad, *_) = node._saved_self, node._saved_input2, node._saved_input3, grads
    if all(ahead is None for ahead, _ in node.next_functions[:2]):
        to_other = torch.ormqr(vectors, scales, grad, node._saved_left, not node._saved_transpose)
        if is_finite(to_other):
            return None, None, to_other
    if node._saved_left:
        return _reflected(vectors, scales, other, grad, node._saved_transpose)
    vectors, scales, other = _reflected(vectors, scales, other.mH, grad.mH, not node._saved_transpose)
    return vectors, scales, other.mH


def _reflected(
    vectors: Tensor, scales: Tensor, matrix: Tensor, grad: Any, adjoint: bool, identity: bool = False
) -> tuple[Any, Any, Any]:
    """The gradients of vectors, scales and matrix.

    Reflection i is 1 - scale * vector * vector's adjoint, from row i on. In the identity, column i and the columns
    before it are still unchanged then. So the product of the vector's adjoint with column i is 1 for any vector.
    """
    rows, count = vectors.shape[-2], scales.shape[-1]
    steps = []
    for i in range(count) if adjoint else reversed(range(count)):
        vector = torch.cat([torch.ones_like(vectors[..., i, None, i]), vectors[..., i + 1 :, i]], -1).unsqueeze(-1)
        scale = scales[..., i, None, None].conj() if adjoint else scales[..., i, None, None]
        first = i if identity else 0
        given = matrix[..., i:, first:]
        along = (vector.conj() * given).sum(-2, keepdim=True)
        if identity:
            along[..., 0] = 1
        steps.append((i, first, vector, scale, given, along))
        matrix = matrix.clone()
        matrix[..., i:, first:] = given - scale * vector * along
    grad_vectors: list[Any] = [nothing(vectors[..., 0])] * vectors.shape[-1]
    grad_scales: list[Any] = [None] * count
    for i, first, vector, scale, given, along in reversed(steps):
        above, below = torch.split(grad, [i, rows - i], -2)
        left, right = torch.split(below, [first, below.shape[-1] - first], -1)
        by_scale = -(right * along.conj() * vector.conj()).sum((-2, -1))
        grad_scales[i] = by_scale.conj() if adjoint else by_scale
        scaled = right * -scale.conj()
        grad_along = (scaled * vector.conj()).sum(-2, keepdim=True)
        rest = 1 if identity else 0  # `along` is 1 for the first column, so the vector gets no gradient from it
        by_vector = (scaled * along.conj()).sum(-1) + (grad_along.conj() * given)[..., rest:].sum(-1)
        grad_vectors[i] = torch.cat([nothing(vectors[..., : i + 1, i]), by_vector[..., 1:]], -1)
        grad = torch.cat([above, torch.cat([left, right + vector * grad_along], -1)], -2)
    return torch.stack(grad_vectors, -1), torch.stack(grad_scales, -1) if count else nothing(scales), grad


@derivative("Logcumsumexp", fills=("Where(Log(Abs), None)",))
def logcumsumexp(node: Any, grads: Any) -> tuple[Any]:
    """The sum up to an element is a term of the next sum. PyTorch's formula adds cotangents as logarithms instead.

    The gradient of total k by x[i] is exp(x[i] - total[k]), here a product of steps exp(total[j] - total[j + 1]). If
    two totals are equal, the step is 1, also if both are -inf. If a total of -inf is used, then x[i] - total[i], a NaN,
    is the gradient of the total's elements: it has no derivative either.

    PyTorch's formula takes a NaN cotangent for 0, because it is neither above nor below 0. If the NaN came from an
    ignored element, a finite number arrives here in its place. So our gradient differs from PyTorch's finite one.
    """
    (grad,), x, total, dim = grads, node._saved_self, node._saved_result, signed(node._saved_dim)
    if not total.dim():
        return (grad,)
    before, is_empty, difference = _totals_before(total, dim, -math.inf), total == -math.inf, x - total
    by_before = (before - total).masked_fill(before == total, 0).exp()
    (result,) = _accumulated(grad, by_before, difference.masked_fill(is_empty, 0).exp(), dim)
    return (torch.where(is_empty & _up_to_the_last(_mask(grad) & is_empty, dim), difference, result),)


@derivative("Cumprod")
def cumprod(node: Any, grads: Any) -> tuple[Any]:
    """The product up to an element is a factor of the next product. Without a 0, sums and a division are enough."""
    (grad,), x, total, dim = grads, node._saved_self, node._saved_result, signed(node._saved_dim)
    if not x.dim():
        return (grad,)
    counts = _up_to_the_last(_mask(grad), dim)
    x = torch.where(counts, x, 1)
    if bool((x == 0).any()):
        return _accumulated(grad, x, _totals_before(total, dim, 1), dim)
    terms = _numbers(grad) * torch.where(counts, total, 0).conj()
    return (_counting(terms.flip(dim).cumsum(dim).flip(dim) / x.conj(), counts),)


def _up_to_the_last(mask: Tensor, dim: int) -> Tensor:
    """True for each element before or at the last one at which the mask is True."""
    return mask.flip(dim).cumsum(dim, dtype=torch.int32).flip(dim) != 0


def _totals_before(total: Tensor, dim: int, first: float) -> Tensor:
    """The total before each element."""
    return torch.cat([torch.full_like(total.narrow(dim, 0, 1), first), total.narrow(dim, 0, total.shape[dim] - 1)], dim)


def _accumulated(grad: Any, by_before: Tensor, by_entry: Tensor, dim: int) -> tuple[Any]:
    """The gradient of x for a function that accumulates.

    Element i gets its own cotangent, and that of element i + 1 times a factor. In each round, element i gets what has
    arrived at an element twice as far behind it as in the round before, times the product of the factors in between.

    Args:
        grad: the cotangent.
        by_before, by_entry: the derivatives of each total by the total before it, and by its element of x.
    """
    counts = _up_to_the_last(_mask(grad), dim)
    by_before, by_entry = (torch.where(counts, d, 0).conj() for d in (by_before, by_entry))
    size = counts.shape[dim]
    arrived, factors, far = _numbers(grad), by_before.narrow(dim, 1, size - 1), 1
    while far < size:
        ahead, rest = torch.split(arrived, [size - far, far], dim)
        arrived = torch.cat([ahead + factors * arrived.narrow(dim, far, size - far), rest], dim)
        if 2 * far < size:
            factors = factors.narrow(dim, 0, size - 2 * far) * factors.narrow(dim, far, size - 2 * far)
        far *= 2
    return (_counting(arrived * by_entry, counts),)


@rule("linalg_matrix_exp")
def matrix_exp(op: Any, blocks: Any) -> Any:
    """PyTorch's formula has the cotangent in the upper right block of a matrix of twice the size.

    The whole block of the result counts if one element of the cotangent counts.
    """
    value, size = op(unwrap(blocks)), blocks.shape[-1] // 2
    if blocks.mask is None:
        return Cotangent(value)
    used = anywhere(blocks.mask[..., :size, size:], (-2, -1), True).expand(*blocks.shape[:-2], size, size)
    return zero_ignored(value, torch.nn.functional.pad(used, (size, 0, 0, size), value=True))
