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

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, unwrap, zero_ignored
from ...masks.mask import anywhere, full
from ...masks.numbers import has_nan
from ..conditions import FINITE
from ..numerics import numerics
from ..record import Rule
from ..registry import derivative, function, rule
from .stepwise import within_matrices

function("LuUnpack", selects=True)
# Of the matrix, a triangle. A result that is finite shows that no pivot was 0 and that no inverse overflowed.
function("LinalgSolveTriangular TriangularSolve", selects=True, safe_if=FINITE)

numerics("svd", like="linalg_svd")
numerics("logdet linalg_slogdet", like="slogdet")


def _solves(counting: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Rule]:
    """Make a rule from a function that solves with the matrices of a batch whose result in plain PyTorch has NaN.

    Args:
        counting: gives the mask of the unknowns from the mask of the right-hand side.
    """

    def made(solve: Callable[..., Tensor]) -> Rule:
        @functools.wraps(solve)
        def solved(op: Any, *given: Any, **kwargs: Any) -> Any:
            exact = op(*unwrap(given), **kwargs)
            *factors, b = given
            if any(mask_of(factor) is not None for factor in factors):
                raise NotFollowed("is not linear in the matrix")
            if mask_of(b) is None:
                return Cotangent(exact)
            counts = counting(b.mask, **kwargs).expand(exact.shape)
            if not has_nan(exact):
                return Cotangent(exact, counts)
            cleared = zero_ignored(exact.clone(), counts)
            if not has_nan(cleared.value):
                return cleared
            lost = exact.isnan().any(-1).any(-1)

            def part(tensor: Tensor) -> Tensor:
                inner = tensor.shape[-1:] if tensor.dtype is torch.int32 else tensor.shape[-2:]  # pivots are vectors
                return tensor.expand(*lost.shape, *inner)[lost]

            of_lost = Cotangent(part(b.value), part(b.mask), b.step)
            repaired = exact.clone()
            repaired[lost] = solve(op, *map(part, unwrap(factors)), of_lost, part(exact), **kwargs)
            return prefer_exact(exact, Cotangent(repaired, counts))

        return solved

    return made


def _reached(rows: Tensor, upper: bool, left: bool = True, **_: Any) -> Tensor:
    """The unknowns that depend on these rows (or columns): on those from the first one solved up to their own."""
    order = -2 if left else -1
    if upper is left:
        return rows.flip(order).cumsum(order).flip(order) != 0
    return rows.cumsum(order) != 0


@rule("linalg_solve_triangular")
@_solves(_reached)
def solve_triangular(
    op: Any, a: Tensor, b: Cotangent, exact: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """By the kernel, on matrices with finite numbers alone. Unknowns that use other numbers are as in plain PyTorch."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    bad = a.isfinite().logical_not() | ((a == 0) & (one != 0))  # the diagonal divides
    bad = bad.triu(int(unitriangular)) if upper else bad.tril(-int(unitriangular))
    counts, bad_ones = _reached(full(b.mask, b.value), upper, left).float(), bad.float()
    met = bad_ones @ counts if left else counts @ bad_ones
    finite = op(torch.where(bad, one, a), b.value, upper=upper, left=left, unitriangular=unitriangular)
    return torch.where(_reached(met, upper, left), exact, finite)


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


def _whole(mask: Tensor, left: bool = True, **_: Any) -> Tensor:
    """All unknowns of a column (or row) count if one element of the right-hand side does."""
    return anywhere(mask, -2 if left else -1, True)


@rule("linalg_lu_solve")
@_solves(_whole)
def lu_solve(
    op: Any, lu: Tensor, pivots: Tensor, b: Any, exact: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """By a permutation and two triangular systems."""
    given = b if left else b.mH
    # X A = B is the same as the adjoint system A* X* = B*.
    adjoint = adjoint if left else not adjoint
    permutation = torch.lu_unpack(lu, pivots, unpack_data=False)[0]

    def solve(matrix: Tensor, right: Any, upper: bool, unit: bool) -> Any:
        return torch.linalg.solve_triangular(matrix, right, upper=upper, unitriangular=unit)

    if adjoint:
        half = solve(lu.mH, given, False, False)
        solution = permutation @ solve(lu.mH, half, True, True)
    else:
        half = solve(lu, permutation.mT @ given, False, True)
        solution = solve(lu, half, True, False)
    result: Tensor = unwrap(solution if left else solution.mH)
    return result


@rule("_linalg_solve_ex")
def solve_ex(op: Any, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """By the LU factors, which the operator also returns."""
    exact, *factors, info = op(unwrap(a), unwrap(b), left=left, check_errors=check_errors)
    if mask_of(b) is None:
        return Cotangent(exact), *factors, info
    vector = unwrap(b).dim() == unwrap(a).dim() - 1
    columns = b.unsqueeze(-1) if vector else b
    masked = torch.linalg.lu_solve(*factors, columns, left=left)
    return prefer_exact(exact, masked.squeeze(-1) if vector else masked), *factors, info


@rule("ormqr")
def multiplied_by_reflections(op: Any, reflectors: Any, scales: Any, other: Any, left: bool = True, *args: Any) -> Any:
    """A product with a unitary matrix, which keeps the columns (or rows) apart. Its own derivative is in `stepwise`."""
    value = op(unwrap(reflectors), unwrap(scales), unwrap(other), left, *args)
    mask = mask_of(other)
    return zero_ignored(value, None if mask is None else anywhere(mask, -2 if left else -1, True))


@derivative("LinalgDet", mixes=within_matrices)
def determinant(node: Any, grads: Any) -> tuple[Any]:
    """PyTorch's formula for a gradient that is recorded. It decomposes only singular matrices into singular values.

    For a subclass, PyTorch itself decomposes all matrices, and raises an error if an ignored matrix has a NaN.
    """
    (grad,), matrix, value = grads, node._saved_A, node._saved_result
    right = torch.diag_embed((grad * value.conj()).unsqueeze(-1).expand(matrix.shape[:-1])).mT
    singular = (value.abs() < 100 * torch.finfo(value.dtype).eps) & matrix.isfinite().all(-1).all(-1)
    if not bool(singular.any()):
        return (torch.linalg.solve_ex(matrix.mH, right).result,)
    left, sizes, adjoint = torch.linalg.svd(matrix[singular])
    sign = (torch.linalg.det(left) * torch.linalg.det(adjoint)).conj()
    ahead, behind = (
        torch.cat([torch.ones_like(part[..., :1]), part[..., :-1]], -1).cumprod(-1) for part in (sizes, sizes.flip(-1))
    )
    products = (grad[singular] * sign).unsqueeze(-1) * (ahead * behind.flip(-1))  # of all other singular values
    result = torch.zeros_like(matrix).index_put((singular,), (left * products.unsqueeze(-2)) @ adjoint)
    regular = singular.logical_not()
    if bool(regular.any()):
        result = result.index_put((regular,), torch.linalg.solve_ex(matrix[regular].mH, right[regular]).result)
    return (result,)


@rule("linalg_cross")
def cross(op: Any, a: Any, b: Any, *, dim: int = -1) -> Any:
    """The difference of two products."""
    exact = op(unwrap(a), unwrap(b), dim=dim)
    if mask_of(a) is None and mask_of(b) is None:
        return Cotangent(exact)
    return prefer_exact(exact, a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim))
