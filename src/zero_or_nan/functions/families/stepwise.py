"""Derivatives step by step, for functions whose first outputs need only the first inputs.

Column j of a QR decomposition is computed from the columns up to j. PyTorch's derivative multiplies whole matrices and
solves whole systems, so a NaN of the last column meets the cotangents of the first column. Here, each step of the
textbook algorithm is differentiated by itself, the last step first. So ignored elements never meet used ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, nothing, unwrap, zero_ignored
from ...masks.mask import anywhere
from ..graph import signed
from ..registry import derivative, rule


def within_matrices(node: Any) -> tuple[int, int]:
    """The dimensions of the matrices in a batch, which don't influence each other."""
    return -2, -1


def _along(node: Any) -> tuple[int]:
    """The dimension along which a function accumulates."""
    return (signed(node._saved_dim),)


@derivative("LinalgCholeskyEx", mixes=within_matrices)
def cholesky(node: Any, grads: Any) -> tuple[Any]:
    """Each column of the factor is a column of the matrix, less products of earlier columns, divided by a root."""
    (grad, *_), lower = grads, node._saved_L
    if lower.is_complex():
        raise NotFollowed("has a gradient that is not Hermitian, of which a part can't be replaced")
    if node._saved_upper:
        grad, lower = grad.mH, lower.mH
    size = lower.shape[-1]
    columns: list[Any] = []
    for j in reversed(range(size)):
        above, below = torch.split(grad[..., : j + 1], [j, size - j], -2)
        root, column, row = lower[..., j, j, None], lower[..., j + 1 :, j], lower[..., j, None, :j]
        rest = below[..., 1:, j] / root
        first = below[..., 0, j].unsqueeze(-1) - (rest * column.conj()).sum(-1, keepdim=True)
        both = torch.cat([first / (2 * root), rest], -1).unsqueeze(-1)
        columns.append(torch.cat([nothing(above[..., j:]), both], -2))
        # Each element has lost products of two factors: one in its own row (`below`), and one in row j (`own`).
        below = below[..., :j] - both * row
        own = below[..., :1, :] - (both.conj() * lower[..., j:, :j]).sum(-2, keepdim=True)
        grad = torch.cat([above[..., :j], own, below[..., 1:, :]], -2)
    triangle = torch.cat(columns[::-1], -1)
    return ((triangle + triangle.mH) / 2,)


@derivative("CholeskyInverse", mixes=within_matrices)
def cholesky_inverse(node: Any, grads: Any) -> tuple[Any]:
    """The inverse of the last rows and columns grows by a row and a column at each step. One triangle is not read.

    Let r be a root on the factor's diagonal, c the column below it, and B the inverse for the rows and columns behind
    both. The step adds the column v = -B c / r, its adjoint as a row, and the corner u / r, where u = 1 / r - c v. For
    complex numbers, c in u, and r in u / r, are conjugate.
    """
    (grad,), lower, inverse = grads, node._saved_self, node._saved_result
    if node._saved_upper:
        lower = lower.mH
    columns: list[Any] = []
    for j in range(lower.shape[-1]):
        root, column = lower[..., j, j, None], lower[..., j + 1 :, j]
        corner, added, behind = inverse[..., j, j, None], inverse[..., j + 1 :, j], inverse[..., j + 1 :, j + 1 :]
        grad_corner, grad_u = grad[..., 0, 0, None], grad[..., 0, 0, None] / root
        grad_added = grad[..., 1:, 0] + grad[..., 0, 1:].conj() - grad_u * column
        grad_product = -grad_added / root.conj()
        by_root = (grad_product * added.conj()).sum(-1, keepdim=True)
        by_root = by_root - grad_u / root.conj() ** 2 - (grad_corner * corner.conj() / root).conj()
        by_column = _combined(behind.mH, grad_product) - grad_u.conj() * added
        columns.append(torch.cat([nothing(lower[..., :j, j]), by_root, by_column], -1))
        grad = grad[..., 1:, 1:] + grad_product.unsqueeze(-1) * column.conj().unsqueeze(-2)
    triangle = torch.stack(columns, -1)
    return (triangle.mH if node._saved_upper else triangle,)


@derivative("LinalgLuFactorEx", mixes=within_matrices)
def lu_factor(node: Any, grads: Any) -> tuple[Any]:
    """The LU decomposition with both factors in one matrix."""
    grad, packed = grads[0], node._saved_LU
    permutation = torch.lu_unpack(packed, node._saved_pivots, unpack_data=False)[0] if node._saved_pivot else None
    return (_eliminated(permutation, packed, packed, grad, grad),)


@derivative("LinalgLu", mixes=within_matrices)
def lu(node: Any, grads: Any) -> tuple[Any]:
    """The LU decomposition with a matrix for each factor."""
    permutation = node._saved_P if node._saved_pivot else None
    return (_eliminated(permutation, node._saved_L, node._saved_U, *grads[-2:]),)


def _eliminated(permutation: Tensor | None, lower: Tensor, upper: Tensor, grad_lower: Any, grad_upper: Any) -> Any:
    """The gradient of the matrix. Gaussian elimination subtracts a product from the rest of the matrix at each step."""
    count = min(lower.shape[-2], upper.shape[-1])
    rest: Any = nothing(grad_lower[..., count:, :1] + grad_upper[..., :1, count:])
    for j in reversed(range(count)):
        pivot, column, row = upper[..., j, j, None], lower[..., j + 1 :, j], upper[..., j, j + 1 :]
        below = (grad_lower[..., j + 1 :, j] - (rest * row.conj().unsqueeze(-2)).sum(-1)) / pivot.conj()
        right = grad_upper[..., j, j + 1 :] - (rest * column.conj().unsqueeze(-1)).sum(-2)
        corner = grad_upper[..., j, j, None] - (below * column.conj()).sum(-1, keepdim=True)
        bottom = torch.cat([below.unsqueeze(-1), rest], -1)
        rest = torch.cat([torch.cat([corner, right], -1).unsqueeze(-2), bottom], -2)
    if permutation is None:
        return rest
    return rest.gather(-2, permutation.real.argmax(-1, keepdim=True).expand(rest.shape))


@derivative("LinalgQr", mixes=within_matrices)
def qr(node: Any, grads: Any) -> tuple[Any]:
    """By Gram-Schmidt: each column loses its parts along the earlier directions, and is scaled to length 1."""
    (grad_q, grad_r), q, r = grads, node._saved_Q, node._saved_R
    rows, count = q.shape[-2:]
    # In a real square matrix, the other directions determine the last one, so it does not depend on its own column.
    taken = count - 1 if rows == count and not q.is_complex() else count
    columns: list[Any] = []
    for j in reversed(range(taken, r.shape[-1])):
        column, grad_parts = _combined(q, r[..., j]), grad_r[..., j]
        columns.append(_combined(q, grad_parts))
        grad_q = grad_q + column.unsqueeze(-1) * grad_parts.conj().unsqueeze(-2)
    if taken < count:
        last, grad_last = q[..., taken:], grad_q[..., taken:]
        grad_q = grad_q[..., :taken] - last * (q[..., :taken] * grad_last).sum(-2, keepdim=True)
    for j in reversed(range(taken)):
        before, parts, direction, length = q[..., :j], r[..., :j, j], q[..., j], r[..., j, j, None]
        grad_direction = grad_q[..., j]
        along = (grad_direction * direction.conj()).sum(-1, keepdim=True).real
        grad_rest = (grad_direction - direction * along) / length + direction * grad_r[..., j, j, None].real
        grad_parts = grad_r[..., :j, j] - (before.conj() * grad_rest.unsqueeze(-1)).sum(-2)
        columns.append(grad_rest + _combined(before, grad_parts) if j else grad_rest)
        column = _combined(q[..., : j + 1], r[..., : j + 1, j])
        grad_q = grad_q[..., :j] + column.unsqueeze(-1) * grad_parts.conj().unsqueeze(-2)
        grad_q = grad_q - grad_rest.unsqueeze(-1) * parts.conj().unsqueeze(-2)
    return (torch.stack(columns[::-1], -1),)


def _combined(directions: Tensor, parts: Any) -> Any:
    """The sum of the directions (columns), each times its part."""
    return (directions * parts.unsqueeze(-2)).sum(-1)


@derivative("LinalgHouseholderProduct", mixes=within_matrices)
def householder_product(node: Any, grads: Any) -> tuple[Any, Any]:
    """The reflections applied to the identity. Later reflections leave its first columns unchanged."""
    vectors = node._saved_input
    identity = torch.eye(*vectors.shape[-2:], dtype=vectors.dtype, device=vectors.device).expand(vectors.shape)
    return _reflected(vectors, node._saved_tau, identity, grads[0], adjoint=False, identity=True)[:2]


@derivative("Ormqr", mixes=within_matrices)
def ormqr(node: Any, grads: Any) -> tuple[Any, Any, Any]:
    """The reflections applied to a matrix. From the right, they are applied to its adjoint."""
    vectors, scales, other, (grad, *_) = node._saved_self, node._saved_input2, node._saved_input3, grads
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


@derivative("Logcumsumexp", mixes=_along, fills=("Where(Log(Abs), None)",))
def logcumsumexp(node: Any, grads: Any) -> tuple[Any]:
    """The sum up to an element is a term of the next sum. PyTorch's formula adds cotangents as logarithms instead.

    The gradient of total k by x[i] is exp(x[i] - total[k]), here a product of steps exp(total[j] - total[j + 1]). If
    two totals are equal, the step is 1, also if both are -inf. If a total of -inf is used, its gradient is undefined.

    PyTorch's formula takes a NaN cotangent for 0, because it is neither above nor below 0. If the NaN came from an
    ignored element, a finite number arrives here in its place. So our gradient differs from PyTorch's finite one.
    """
    (grad,), total = grads, node._saved_result
    if total.dim():
        grad = grad * torch.ones_like(total).masked_fill_(total == -math.inf, torch.nan)

    def derivatives(x: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        by_x = (x - after).masked_fill_((x == after) & (x == -math.inf), 0)
        return (before - after).masked_fill_(before == after, 0).exp(), by_x.exp()

    return _accumulated(node, (grad,), derivatives)


@derivative("Cumprod", mixes=_along)
def cumprod(node: Any, grads: Any) -> tuple[Any]:
    """The product up to an element is a factor of the next product. PyTorch divides by the element instead."""
    return _accumulated(node, grads, lambda x, before, after: (x, before))


def _accumulated(
    node: Any, grads: Any, derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Any]:
    """The gradient of x for a function that accumulates.

    `derivatives(x, before, after)` gives the derivatives of each step by the total before it, and by its element of x.
    """
    (grad,), x, total, (dim,) = grads, node._saved_self, node._saved_result, _along(node)
    if x.dim() == 0:
        return (grad,)
    before = torch.cat([torch.ones_like(total.narrow(dim, 0, 1)), total.narrow(dim, 0, total.shape[dim] - 1)], dim)
    by_before, by_entry = (d.conj().unbind(dim) for d in derivatives(x, before, total))
    behind: Any = None
    gradients: list[Any] = []
    for i, here in reversed(list(enumerate(grad.unbind(dim)))):
        here = here if behind is None else here + behind
        gradients.append(here * by_entry[i])
        behind = here * by_before[i]
    return (torch.stack(gradients[::-1], dim),)


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
