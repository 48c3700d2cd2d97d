"""Products with a sparse factor, as a graph network's with its adjacency matrix, and cotangents that are sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..conditions import FINITE
from ..cotangent import Cotangent, mask_of, prefer_exact, step_of, unwrap
from ..finite import has_nan
from ..masks import anywhere, full
from ..registry import RULES_OF_SPARSE, Rule, function, rule
from ..sparse import is_sparse, places, stored, with_stored

function("SparseAddmm", selects=True, safe_if=FINITE, scalars=("alpha", "beta"))
function("SparseMmReduceImpl", selects=True, safe_if=FINITE)


def sparse_product(op: Any, a: Any, b: Any) -> Cotangent:
    """A matrix product of which one factor is sparse: an element that no stored one meets is ignored.

    A backward of the user's own may leave zeros that it computed out of a sparse matrix: there an element counts
    wherever one that is summed does.
    """
    exact = op(unwrap(a), unwrap(b))
    sparse_is_first = is_sparse(unwrap(a))
    sparse, dense = (a, b) if sparse_is_first else (b, a)
    used = full(mask_of(dense), unwrap(dense))
    vector = used.dim() == 1
    summed, kept = (-2, -1) if sparse_is_first else (-1, -2)
    step = step_of((a, b))
    if step is not None and step.is_anothers and not step.selects:
        mask = anywhere(used, -1 if vector else summed, keepdim=not vector)
    else:
        if not vector and used.shape[kept] and not used.stride(kept):  # all columns are alike, or all rows
            used = used.narrow(kept, 0, 1)
        pattern, counts = _counts(sparse), used.to(exact.dtype)
        mask = (op(pattern, counts) if sparse_is_first else op(counts, pattern)) != 0
    mask = mask.expand(exact.shape)
    if not has_nan(exact):
        return Cotangent(exact, mask)
    if sparse_is_first:
        careful = _by_element(sparse, dense if not vector else dense.unsqueeze(-1))
    else:
        careful = _by_element(sparse.transpose(-1, -2), dense.transpose(-1, -2)).transpose(-1, -2)
    merged: Cotangent = prefer_exact(exact, Cotangent(careful.reshape(exact.shape), mask))
    return merged


def _by_element(sparse: Any, dense: Any) -> Tensor:
    """The value of `sparse @ dense`, each stored element multiplied by itself."""
    *batch, row, column = places(unwrap(sparse))
    rows, columns = sparse.shape[-2:]
    for of in batch:
        row, column = of * rows + row, of * columns + column
    values = Cotangent(stored(sparse.value), sparse.mask) if type(sparse) is Cotangent else stored(sparse)
    terms = values.unsqueeze(-1) * dense.reshape(-1, dense.shape[-1]).index_select(0, column)
    shape = *sparse.shape[:-1], dense.shape[-1]
    value: Tensor = unwrap(terms).new_zeros(shape)
    value.view(-1, shape[-1]).index_add_(0, row, unwrap(terms))
    return value


# Cotangents that are sparse: PyTorch makes them for what is stored alone.


def of_sparse(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of an operator for cotangents that are sparse."""

    def register(ours: Rule) -> Rule:
        RULES_OF_SPARSE.update((getattr(torch.ops.aten, name), ours) for name in names)
        return ours

    return register


of_sparse("mm", "mv", "bmm")(sparse_product)


@rule("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe", "sparse_coo_tensor")
def made_sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What is not in it is 0 and ignored: the gradient of a sparse embedding, or of the elements that are stored."""
    value = op(*unwrap(args), **unwrap(kwargs))
    values = next((arg for arg in args if type(arg) is Cotangent), None)
    return Cotangent(value, None if values is None else full(values.mask, values.value))


@of_sparse("_values", "values", "detach", "clone")
def taken_out(op: Any, grad: Any, **kwargs: Any) -> Any:
    """The elements that are stored, or a copy."""
    return Cotangent(op(grad.value, **kwargs), grad.mask)


@of_sparse("_to_dense")
def made_dense(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """What is not stored is ignored."""
    return Cotangent(op(grad.value, *args, **kwargs), op(_counts(grad), *args, **kwargs) != 0)


@rule("sparse_mask")
def picked(op: Any, grad: Any, pattern: Any, *args: Any, **kwargs: Any) -> Any:
    """The elements of a dense cotangent in the places that are stored."""
    value = op(unwrap(grad), unwrap(pattern), *args, **kwargs)
    return Cotangent(value, full(mask_of(grad), unwrap(grad))[tuple(places(value))])


@of_sparse("sparse_mask")
def picked_again(op: Any, grad: Any, pattern: Any, *args: Any, **kwargs: Any) -> Any:
    """Those of a sparse one; what it does not store is ignored."""
    value = op(unwrap(grad), unwrap(pattern), *args, **kwargs)
    return Cotangent(value, stored(op(_counts(grad), unwrap(pattern), *args, **kwargs)) != 0)


@rule("sparse_sampled_addmm")
def sampled(op: Any, base: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The elements of a product in the places that are stored."""
    exact = op(unwrap(base), unwrap(a), unwrap(b), beta=beta, alpha=alpha)
    row, column = places(exact)
    terms = a.index_select(0, row) * b.t().index_select(0, column)
    values, added = terms.sum(-1) * alpha, stored(unwrap(base)) * beta
    merged = prefer_exact(
        stored(exact), values + added if bool(added.any()) else values
    )  # a derivative adds to nothing
    return Cotangent(with_stored(exact, merged.value), full(merged.mask, merged.value))


@rule("_sparse_mm_reduce_impl_backward")
def reduced_product(op: Any, sparse: Any, grad: Any, dense: Any, reduce: str, chosen: Any, wanted: Any) -> Any:
    """Both gradients of `torch.sparse.mm` with a reduction: of the stored elements, and of what they multiply."""
    to_stored, to_dense = op(unwrap(sparse), unwrap(grad), unwrap(dense), reduce, chosen, wanted)
    row, column = places(unwrap(sparse))
    arriving = grad.index_select(0, row)  # at each stored element
    if reduce == "mean":
        arriving = arriving / row.bincount(minlength=grad.shape[0]).index_select(0, row).unsqueeze(-1)
    elif reduce != "sum" and len(row):
        taken = chosen.index_select(0, row) == torch.arange(len(row), device=row.device).unsqueeze(-1)
        arriving = torch.where(taken, arriving, 0.0)
    if wanted[0]:
        merged = prefer_exact(stored(to_stored), (arriving * dense.index_select(0, column)).sum(-1))
        to_stored = Cotangent(with_stored(to_stored, merged.value), full(merged.mask, merged.value))
    if wanted[1]:
        terms = arriving * stored(unwrap(sparse)).unsqueeze(-1)
        to_dense = prefer_exact(to_dense, torch.zeros_like(unwrap(dense)).index_add(0, column, terms))
    return to_stored, to_dense


def _counts(sparse: Any) -> Tensor:
    """A sparse tensor of 1 in the places where a stored element counts."""
    values = stored(unwrap(sparse))
    return with_stored(unwrap(sparse), full(mask_of(sparse), values).to(values.dtype))
