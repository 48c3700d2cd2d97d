"""The grouped matrix product of mixture-of-experts models: each expert's rows times that expert's matrix.

The buffer may be longer than the rows of all experts. The kernel writes nothing after the last expert's rows, neither
in the result nor in the derivative. The memory there holds no gradient, so the rules set it to 0 and ignore it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, unwrap
from ...masks.mask import full
from ..registry import function, rule
from .products import bilinear

function("GroupedMm", since="2.10", selects=True)


@rule("_grouped_mm", since="2.10")
def grouped_product(op: Any, a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """One factor is the cotangent. If it is the right factor, the product is transposed."""
    if type(a) is Cotangent and type(b) is Cotangent:
        raise NotFollowed("multiplies two cotangents")
    if type(a) is Cotangent:
        return _from_left(lambda grad, saved: op(grad, saved, offs, bias, out_dtype), a, unwrap(b), offs)
    return _from_left(lambda grad, saved: op(saved.mT, grad.mT, offs, bias, out_dtype).mT, b.mT, a.mT, offs).mT


def _from_left(apply: Callable[[Tensor, Tensor], Tensor], grad: Cotangent, saved: Tensor, offs: Any) -> Any:
    """The product of a cotangent and a saved tensor. Each of the two may have a matrix for each expert."""
    used = full(grad.mask, grad.value)
    experts = _Experts(offs, used.device)
    if grad.value.dim() == 3 and saved.dim() == 3:
        counts = used.any(-1, keepdim=True)
    elif grad.value.dim() == 3:
        counts = experts.each(used.any(-1), saved.shape[-1]).mT
    elif saved.dim() == 3:
        counts = (used.any(-1) & experts.has(len(used))).unsqueeze(-1)
    else:
        counts = experts.anywhere(used.mT).unsqueeze(-1)

    def written(left: Tensor, right: Tensor) -> Tensor:
        """The product, with 0 where nothing counts, as where the kernel writes nothing."""
        value = apply(left, right)
        return value if bool(counts.all()) else value.masked_fill_(~counts, 0)

    value = bilinear(written, Cotangent(grad.value, used), saved)
    return Cotangent(value, counts.expand(value.shape))


class _Experts:
    """Which rows belong to which expert: `ends` has the end of each expert's rows. Later rows have no expert."""

    def __init__(self, ends: Tensor | None, device: torch.device) -> None:
        self.ends = torch.zeros(0, dtype=torch.int32, device=device) if ends is None else ends

    def of(self, rows: int) -> Tensor:
        """The number of each row's expert."""
        places = torch.arange(rows, dtype=self.ends.dtype, device=self.ends.device)
        return torch.searchsorted(self.ends, places, right=True)

    def has(self, rows: int) -> Tensor:
        """True for each row that belongs to an expert."""
        return self.of(rows) < len(self.ends)

    def each(self, of_expert: Tensor, rows: int) -> Tensor:
        """For each row, the flag of its expert."""
        return torch.cat((of_expert, torch.zeros_like(of_expert[:1])))[self.of(rows)]

    def anywhere(self, of_row: Tensor) -> Tensor:
        """For each expert, True if the flag is set in any of its rows."""
        count = torch.zeros((len(self.ends) + 1, *of_row.shape[1:]), device=of_row.device)
        return count.index_add_(0, self.of(len(of_row)), of_row.float())[:-1] > 0
