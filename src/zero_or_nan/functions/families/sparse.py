"""Products with a sparse factor, such as a graph network's adjacency matrix, and sparse cotangents."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, selecting, step_of, unwrap
from ...masks.mask import anywhere, full
from ...masks.numbers import has_nan, is_sparse, stored, stored_at
from ..conditions import FINITE
from ..graph import can_be_read_again, function_of, saved_tensors
from ..record import RULES_OF_SPARSE, Rule
from ..registry import function, rule

_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)

function("SparseAddmm", selects=True, safe_if=FINITE, scalars=("alpha", "beta"))
function("SparseMmReduceImpl", selects=True, safe_if=FINITE)
function("SparseMask", selects=True)


def sparse_product(op: Any, a: Any, b: Any) -> Cotangent:
    """A matrix product with one sparse factor. An element that no stored element is multiplied by is ignored.

    A user's own backward may have left zeros that it computed out of its sparse matrix. So in such a backward, an
    element of the result counts if any element along the summed dimension counts.
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
        if not vector and used.shape[kept] and not used.stride(kept):  # the columns (or rows) are all alike: take one
            used = used.narrow(kept, 0, 1)
        pattern, counts = _counts(sparse), used.to(exact.dtype)
        mask = (op(pattern, counts) if sparse_is_first else op(counts, pattern)) != 0
    mask = mask.expand(exact.shape)
    if not has_nan(exact):
        return Cotangent(exact, mask)
    if sparse_is_first:
        masked = _by_element(sparse, dense if not vector else dense.unsqueeze(-1))
    else:
        masked = _by_element(sparse.transpose(-1, -2), dense.transpose(-1, -2)).transpose(-1, -2)
    merged: Cotangent = prefer_exact(exact, Cotangent(masked.reshape(exact.shape), mask))
    return merged


def _by_element(sparse: Any, dense: Any) -> Tensor:
    """The value of `sparse @ dense`, as a sum over the stored elements, so that an ignored factor meets no NaN."""
    *batch, row, column = places(unwrap(sparse))
    rows, columns = sparse.shape[-2:]
    for matrix in batch:
        row, column = matrix * rows + row, matrix * columns + column
    values = Cotangent(stored(sparse.value), sparse.mask) if type(sparse) is Cotangent else stored(sparse)
    terms = values.unsqueeze(-1) * dense.reshape(-1, dense.shape[-1]).index_select(0, column)
    shape = *sparse.shape[:-1], dense.shape[-1]
    value: Tensor = unwrap(terms).new_zeros(shape)
    value.view(-1, shape[-1]).index_add_(0, row, unwrap(terms))
    return value


# Sparse cotangents: PyTorch makes them where only the stored elements have a gradient.


def of_sparse(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of an operator for sparse cotangents."""

    def register(implementation: Rule) -> Rule:
        RULES_OF_SPARSE.update((getattr(torch.ops.aten, name), implementation) for name in names)
        return implementation

    return register


of_sparse("mm", "mv", "bmm")(sparse_product)


@rule("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe", "sparse_coo_tensor")
def made_sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A sparse cotangent from stored elements, as for a sparse embedding. Elements that are not stored are ignored."""
    value = op(*unwrap(args), **unwrap(kwargs))
    values = next((arg for arg in args if type(arg) is Cotangent), None)
    return Cotangent(value, None if values is None else full(values.mask, values.value))


@of_sparse("_values", "values", "detach", "clone")
def taken_out(op: Any, grad: Any, **kwargs: Any) -> Any:
    """The stored elements of a sparse cotangent, or a copy of it."""
    return Cotangent(op(grad.value, **kwargs), grad.mask)


@of_sparse("_to_dense")
def made_dense(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The dense form of a sparse cotangent. Elements that were not stored are ignored if the forward function selects.

    `to_sparse` does not: it stores no zeros, but it uses a zero like any other number.
    """
    mask = op(_counts(grad), *args, **kwargs) != 0
    if not selecting(grad):
        values = stored(grad.value)
        mask = mask | (op(with_stored(grad.value, torch.ones_like(values)), *args, **kwargs) == 0)
    return Cotangent(op(grad.value, *args, **kwargs), mask)


@rule("sparse_mask")
def picked(op: Any, grad: Any, pattern: Any, *args: Any, **kwargs: Any) -> Any:
    """The elements of a dense cotangent at the indices of a sparse tensor."""
    value = op(unwrap(grad), unwrap(pattern), *args, **kwargs)
    return Cotangent(value, full(mask_of(grad), unwrap(grad))[tuple(places(value))])


@of_sparse("sparse_mask", "_sparse_mask_projection")
def picked_again(op: Any, grad: Any, pattern: Any, *args: Any, **kwargs: Any) -> Any:
    """The elements of a sparse cotangent at the indices of another one. Elements that it does not store are ignored."""
    step = step_of((grad,))
    ahead = [] if step is None else [node for node, _ in step.node.next_functions if node is not None]
    if any(function_of(node.name()) == "ToSparse" for node in ahead):  # would take what is left out for a zero
        raise NotFollowed("leaves out elements that a sparse tensor stores")
    value = op(unwrap(grad), unwrap(pattern), *args, **kwargs)
    return Cotangent(value, stored(op(_counts(grad), unwrap(pattern), *args, **kwargs)) != 0)


@rule("sparse_sampled_addmm")
def sampled(op: Any, base: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The elements of a product at the indices of a sparse tensor."""
    exact = op(unwrap(base), unwrap(a), unwrap(b), beta=beta, alpha=alpha)
    row, column = places(exact)
    terms = a.index_select(0, row) * b.t().index_select(0, column)
    values, added = terms.sum(-1) * alpha, stored(unwrap(base)) * beta
    merged = prefer_exact(
        stored(exact), values + added if bool(added.any()) else values
    )  # in a derivative, the added elements are all 0
    return Cotangent(with_stored(exact, merged.value), full(merged.mask, merged.value))


@rule("_sparse_mm_reduce_impl_backward")
def reduced_product(op: Any, sparse: Any, grad: Any, dense: Any, reduce: str, chosen: Any, wanted: Any) -> Any:
    """Both gradients of `torch.sparse.mm` with a reduction: of the stored elements, and of the dense factor."""
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
    """The sparse tensor with 1 for each stored element that counts, and 0 for the others."""
    values = stored(unwrap(sparse))
    return with_stored(unwrap(sparse), full(mask_of(sparse), values).to(values.dtype))


def with_stored(sparse: Tensor, values: Tensor) -> Tensor:
    """The sparse tensor with other values at the same indices."""
    if sparse.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            stored_at(sparse), values, sparse.shape, is_coalesced=sparse.is_coalesced(), check_invariants=False
        )
    return torch.sparse_compressed_tensor(
        *_compressed(sparse), values, sparse.shape, layout=sparse.layout, check_invariants=False
    )


def has_sparse_factor(node: Any) -> bool:
    """True if the node of a product saved a sparse factor, or if the saved tensors can't be read."""
    node_type: Any = type(node)
    strides = _strides(node_type)
    # PyTorch keeps no strides for a sparse factor, or for a factor that needs no gradient.
    if strides is not None and all(strides(node)):
        return False
    try:
        return not can_be_read_again(node, unknown=False) or any(map(is_sparse, saved_tensors(node)))
    except RuntimeError:  # freed
        return True


@functools.cache
def _strides(node_type: type) -> Callable[[Any], Any] | None:
    """How to get the strides of both factors from a node of a type; None if the nodes don't have them."""
    names = [name for name in dir(node_type) if name.endswith("_sym_strides")]
    return operator.attrgetter(*names) if len(names) == 2 else None


def places(sparse: Tensor) -> Tensor:
    """The indices of the stored elements, with a row for each dimension.

    Raises:
        NotFollowed: if whole blocks are stored, or a batch of matrices in a compressed layout.
    """
    if sparse.layout is torch.sparse_coo:
        return stored_at(sparse)
    if sparse.dim() > 2 or stored(sparse).dim() > 1:
        raise NotFollowed("has a sparse factor in blocks or batches that is not finite")
    starts, within = _compressed(sparse)
    lines = torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())
    return torch.stack([lines, within] if sparse.layout in _BY_ROWS else [within, lines])


def _compressed(sparse: Tensor) -> tuple[Tensor, Tensor]:
    """The index tensors of a compressed layout: where each row (or column) starts, and the indices within it."""
    if sparse.layout in _BY_ROWS:
        return sparse.crow_indices(), sparse.col_indices()
    return sparse.ccol_indices(), sparse.row_indices()
