"""Sparse tensors: what they store, and where.

An element that is not stored is not multiplied: what it would have met is ignored. One that is stored as 0 is used.
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
    """Whether this is a tensor that stores some of its elements only."""
    return isinstance(thing, Tensor) and thing.layout in _LAYOUTS


def stored(sparse: Tensor) -> Tensor:
    """The elements that a sparse tensor stores."""
    return sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()


def with_stored(sparse: Tensor, values: Tensor) -> Tensor:
    """The sparse tensor with other values in the same places."""
    if sparse.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            sparse._indices(), values, sparse.shape, is_coalesced=sparse.is_coalesced(), check_invariants=False
        )
    return torch.sparse_compressed_tensor(
        *_compressed(sparse), values, sparse.shape, layout=sparse.layout, check_invariants=False
    )


def has_sparse_factor(node: Any) -> bool:
    """Whether a product's node saved a sparse factor, or may have saved one where that can't be seen."""
    kind: Any = type(node)
    strides = _strides(kind)
    if strides is not None and all(strides(node)):  # PyTorch keeps none for a sparse factor, or one without a gradient
        return False
    try:
        return not can_be_read_again(node, unknown=False) or any(map(is_sparse, saved_tensors(node)))
    except RuntimeError:  # freed
        return True


@functools.cache
def _strides(kind: type) -> Callable[[Any], Any] | None:
    names = [name for name in dir(kind) if name.endswith("_sym_strides")]
    return operator.attrgetter(*names) if len(names) == 2 else None


def places(sparse: Tensor) -> Tensor:
    """The indices of each element that is stored, one dimension in each row.

    Raises:
        NotFollowed: when whole blocks are stored, or the matrices of a batch in a compressed layout.
    """
    if sparse.layout is torch.sparse_coo:
        return sparse._indices()
    if sparse.dim() > 2 or stored(sparse).dim() > 1:
        raise NotFollowed("has a sparse factor in blocks or batches that is not finite")
    starts, within = _compressed(sparse)
    lines = torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())
    return torch.stack([lines, within] if sparse.layout in _BY_ROWS else [within, lines])


def _compressed(sparse: Tensor) -> tuple[Tensor, Tensor]:
    if sparse.layout in _BY_ROWS:
        return sparse.crow_indices(), sparse.col_indices()
    return sparse.ccol_indices(), sparse.row_indices()
