"""Solvers: linear in the right-hand side, whose columns (or rows) don't influence each other.

The lower triangular system L·x = b is solved from above:

    x[0] = b[0] / L[0, 0]
    x[1] = (b[1] - L[1, 0]·x[0]) / L[1, 1]

So x[0] depends on b[0] alone. An unknown is ignored if all that it is computed from is ignored:

>>> from zero_or_nan.ignoring import Cotangent
>>> lower = torch.tensor([[torch.nan, 0.0], [1.0, 2.0]])
>>> b = Cotangent(torch.tensor([[0.0], [4.0]]), mask=torch.tensor([[False], [True]]))
>>> x = torch.linalg.solve_triangular(lower, b, upper=False)
>>> x.value.tolist(), x.mask.tolist()
([[0.0], [2.0]], [[False], [True]])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, unwrap, zero_ignored
from ...masks.mask import Mask, anywhere
from ...masks.numbers import has_nan
from ..conditions import FINITE
from ..graph import run
from ..numerics import numerics
from ..registry import derivative, function, rule
from ..rewrites import advice

function("LuUnpack", selects=True)
# Of the matrix, a triangle. A result that is finite shows that no pivot was 0 and that no inverse overflowed.
function("LinalgSolveTriangular TriangularSolve", selects=True, safe_if=FINITE)

numerics("linalg_svd linalg_eigh", is_open=True)
numerics("svd", like="linalg_svd", is_open=True)
numerics("logdet linalg_slogdet", like="slogdet")
advice(
    "undefined",
    "slogdet",
    "# the determinant is 0 or negative. If the matrix should be positive definite,\n"
    "# look for the mistake before this line. If only rounding made it singular:\n"
    "y = torch.linalg.slogdet(a + 1e-3 * torch.eye(a.shape[-1])).logabsdet",
    "atlas#linear-algebra",
)
advice(
    "undefined",
    "linalg_svd",
    "# the vectors of equal singular values are not unique, and have no slope. If\n"
    "# the loss is the same for all of them, compute it without vectors. If not,\n"
    "# small numbers that make the values differ choose them, with steep slopes.\n"
    "# If the values are enough:\n"
    "s = torch.linalg.svdvals(x)",
    "atlas#linear-algebra",
)
advice(
    "undefined",
    "linalg_eigh",
    "# the vectors of equal eigenvalues are not unique, and have no slope. If the\n"
    "# loss is the same for all of them, compute it without vectors, as matrix_exp\n"
    "# does. If not, small numbers that make the eigenvalues differ choose the\n"
    "# vectors, with steep slopes. If the values are enough:\n"
    "s = torch.linalg.eigvalsh(x)",
    "undefined#eigenvectors-of-equal-eigenvalues",
)


@derivative("LinalgEigh LinalgEig")
def eigenvectors(node: Any, grads: Any) -> Any:
    """PyTorch's own formula. It does not ask of cotangents whether the loss depends on the phase of the vectors."""
    return run(node, *grads)


def _reached(rows: Tensor, upper: bool, left: bool = True, **_: Any) -> Tensor:
    """The unknowns that depend on these rows (or columns): on those from the first one solved up to their own."""
    order = -2 if left else -1
    if upper is left:
        return rows.flip(order).cumsum(order).flip(order) != 0
    return rows.cumsum(order) != 0


@rule("linalg_solve_triangular")
def solve_triangular(op: Any, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """By the kernel, on matrices with finite numbers alone. Unknowns that use other numbers are as in plain PyTorch."""
    how: Any = {"upper": upper, "left": left, "unitriangular": unitriangular}
    exact = op(unwrap(a), unwrap(b), **how)
    cleared = _solution(exact, a, None if mask_of(b) is None else _reached(b.mask, upper, left))
    if cleared.mask is None or not has_nan(cleared.value):
        return cleared
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    bad = a.isfinite().logical_not() | ((a == 0) & (one != 0))  # the diagonal divides
    bad = bad.triu(int(unitriangular)) if upper else bad.tril(-int(unitriangular))
    counts, bad_ones = _reached(b.mask, upper, left).float(), bad.float()
    met = bad_ones @ counts if left else counts @ bad_ones
    finite = op(torch.where(bad, one, a), b.value, **how)
    return prefer_exact(exact, Cotangent(torch.where(_reached(met, upper, left), exact, finite), cleared.mask))


def _solution(exact: Tensor, matrix: Any, counts: Mask) -> Cotangent:
    """Plain PyTorch's solution, with 0 in place of each NaN that doesn't count."""
    if mask_of(matrix) is not None:
        raise NotFollowed("is not linear in the matrix")
    return zero_ignored(exact.clone(), counts)


@rule("triangular_solve")
def triangular_solve(
    op: Any, b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """The older operator for the same, with other arguments."""
    exact, copy = op(unwrap(b), unwrap(a), upper, transpose, unitriangular)
    matrix, upper = (a.mT, not upper) if transpose else (a, upper)
    return prefer_exact(exact, torch.linalg.solve_triangular(matrix, b, upper=upper, unitriangular=unitriangular)), copy


@rule("cholesky_solve")
def cholesky_solve(op: Any, b: Any, factor: Any, upper: bool = False) -> Any:
    """By two triangular systems."""
    exact = op(unwrap(b), unwrap(factor), upper)
    lower = factor.mH if upper else factor
    half = torch.linalg.solve_triangular(lower, b, upper=False)
    return prefer_exact(exact, torch.linalg.solve_triangular(lower.mH, half, upper=True))


def _of_columns(mask: Mask, left: bool) -> Mask:
    """All unknowns of a column (or row) count if one element of the right-hand side does."""
    return None if mask is None else anywhere(mask, -2 if left else -1, True)


@rule("linalg_lu_solve")
def lu_solve(op: Any, lu: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """Each column by itself: PyTorch's solution of one that is ignored may be NaN."""
    exact = op(unwrap(lu), pivots, unwrap(b), left=left, adjoint=adjoint)
    return _solution(exact, lu, _of_columns(mask_of(b), left))


@rule("_linalg_solve_ex")
def solve_ex(op: Any, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """The same, with the LU factors, which the operator also returns. One column may be a vector."""
    exact, *rest = op(unwrap(a), unwrap(b), left=left, check_errors=check_errors)
    is_vector = unwrap(b).dim() == unwrap(a).dim() - 1
    return _solution(exact, a, _of_columns(mask_of(b), left and not is_vector)), *rest


@rule("ormqr")
def multiplied_by_reflections(op: Any, reflectors: Any, scales: Any, other: Any, left: bool = True, *args: Any) -> Any:
    """A product with a unitary matrix, which keeps the columns (or rows) apart. Its own derivative is in `stepwise`."""
    value = op(unwrap(reflectors), unwrap(scales), unwrap(other), left, *args)
    return zero_ignored(value, _of_columns(mask_of(other), left))


@derivative("LinalgDet")
def determinant(node: Any, grads: Any) -> tuple[Any]:
    """The transposed inverse times the determinant. At a singular matrix that is finite, PyTorch's own result is kept.

    For a subclass, PyTorch's formula decomposes all matrices, and raises an error if an ignored matrix has a NaN.
    """
    (grad,), matrix, value = grads, node._saved_A, node._saved_result
    right = torch.diag_embed((grad * value.conj()).unsqueeze(-1).expand(matrix.shape[:-1])).mT
    return (torch.linalg.solve_ex(matrix.mH, right).result,)


@rule("linalg_cross")
def cross(op: Any, a: Any, b: Any, *, dim: int = -1) -> Any:
    """The difference of two products."""
    exact = op(unwrap(a), unwrap(b), dim=dim)
    if mask_of(a) is None and mask_of(b) is None:
        return Cotangent(exact)
    return prefer_exact(exact, a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim))
