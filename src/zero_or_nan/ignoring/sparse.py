"""Sparse tensors: the elements that they store, and the indices of these elements.

A product skips an element that is not stored, so it ignores the other factor there. It uses an element stored as 0.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .failures import NotFollowed
from .graph import can_be_read_again, saved_tensors

_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_LAYOUTS = frozenset((torch.sparse_coo, torch.sparse_csc, torch.sparse_bsc, *_BY_ROWS))


def is_sparse(thing: Any) -> bool:
    """True if this is a sparse tensor."""
    return isinstance(thing, Tensor) and thing.layout in _LAYOUTS


def stored(sparse: Tensor) -> Tensor:
    """The elements that a sparse tensor stores."""
    return sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()


def with_stored(sparse: Tensor, values: Tensor) -> Tensor:
    """The sparse tensor with other values at the same indices."""
    if sparse.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            sparse._indices(), values, sparse.shape, is_coalesced=sparse.is_coalesced(), check_invariants=False
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
        return sparse._indices()
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
