"""Softmax: it mixes the elements along one dimension, and no others.

For y = softmax(x), the gradient by x[i] is y[i]·(g[i] - Σ g[j]·y[j]). If the loss uses one element of a row, the
gradient by all elements of this row counts. If the loss uses no element of a row, the whole row is ignored, even if all
of its y are NaN, as in a row that an attention mask hides:

>>> from zero_or_nan.ignoring import Cotangent
>>> y = torch.tensor([[0.25, 0.75], [torch.nan, torch.nan]])
>>> g = Cotangent(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), mask=torch.tensor([[True, False], [False, False]]))
>>> to_x = torch._softmax_backward_data(g, y, 1, torch.float32)
>>> to_x.value.tolist(), to_x.mask.tolist()
([[0.1875, -0.1875], [0.0, 0.0]], [[True, True], [False, False]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import prefer_exact, unwrap
from ...masks.mask import Mask, anywhere, only
from ...masks.numbers import total
from ..conditions import FINITE
from ..graph import signed
from ..numerics import numerics
from ..registry import function, fused, rule, transfer
from ..rewrites import rewrite

function("LogSoftmax SafeSoftmax Softmax", safe_if=FINITE)
function("MaskedSoftmax", selects=True, safe_if=FINITE)

# -inf is the way to leave an element out.
_SHARES = "atlas#softmax-and-infinite-scores"

numerics("softmax", ignores_infinity=True, section="attention", points="attention#what-to-do")
numerics("log_softmax", ignores_infinity=True, points=_SHARES)
numerics("gumbel_softmax", ignores_infinity=True, draws="numbers")
numerics("logsumexp logaddexp", ignores_infinity=True, needs_one=True, points=_SHARES)
numerics("_softmax_backward_data", written="{} × {}")

_EMPTY = "(x == -torch.inf).all(dim, keepdim=True)"
rewrite(
    "softmax(x, dim)",
    f"x.masked_fill({_EMPTY}, 0).softmax(dim).masked_fill({_EMPTY}, 0)",
    "a row of nothing but -inf becomes 0",
)
rewrite(
    "logaddexp(a, b)",
    "torch.where(torch.maximum(a, b) == -torch.inf, -torch.inf, "
    "torch.logaddexp(a, torch.where(torch.maximum(a, b) == -torch.inf, 0, b)))",
    "the slope of -inf and -inf is 0",
)
rewrite(
    "logsumexp(x, dim)",
    f"x.masked_fill({_EMPTY}, 0).logsumexp(dim, keepdim=keepdim)"
    f".masked_fill({_EMPTY.replace('True', 'keepdim')}, -torch.inf)",
    "the slope of a row of nothing but -inf is 0",
)

aten = torch.ops.aten


def _along_dim(mask: Tensor, output: Tensor, dim: int, *args: Any) -> tuple[Tensor, ...]:
    """All elements along the dimension count if one of them does."""
    return (anywhere(mask, dim, keepdim=True),)


def _without_lost_fibres(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with 0 in each row along the dimension that is ignored as a whole and is not finite.

    Plain PyTorch's result is NaN in such a row, so no finite number changes.
    """
    grad, output, dim, *rest = args
    sums = total(output, dim, keepdim=True)
    kept = anywhere(mask, dim, keepdim=True) | (sums - sums == 0)
    if bool(kept.all()):
        return args
    return (grad, only(kept, output), dim, *rest)


fused("_log_softmax_backward_data", "_softmax_backward_data", masks=_along_dim, set_aside=_without_lost_fibres)


@transfer("Softmax LogSoftmax")
def _softmax(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    return _along_dim(mask, grad, signed(node._saved_dim))


@rule("_masked_softmax_backward")
def masked_softmax_backward(op: Any, grad: Any, output: Tensor, hidden: Tensor, dim: int | None = None) -> Any:
    """The same as without an attention mask, but hidden elements were not selected."""
    to_all: Any = aten._softmax_backward_data(grad, output, -1 if dim is None else dim, output.dtype)
    return prefer_exact(op(unwrap(grad), output, hidden, dim), to_all.masked_fill(hidden, 0))
