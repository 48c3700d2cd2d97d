"""Fused derivatives: PyTorch's own decompositions turn them into operators that have rules."""

from __future__ import annotations

import functools
from typing import Any

from ..cotangent import Cotangent, aten, merge, plain, rule, wrapped

FUSED = (
    "_fused_rms_norm_backward",
    "_log_softmax_backward_data",
    "_prelu_kernel_backward",
    "_softmax_backward_data",
    "batch_norm_backward",
    "binary_cross_entropy_backward",
    "cudnn_batch_norm_backward",
    "glu_backward",
    "huber_loss_backward",
    "mse_loss_backward",
    "native_batch_norm_backward",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
)


@functools.cache
def _decompositions() -> Any:
    """PyTorch's table, imported when it is first needed: that takes a second."""
    from torch._decomp import get_decompositions

    return get_decompositions([getattr(aten, name) for name in FUSED if hasattr(aten, name)])


@rule(*FUSED)
def decomposed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Plain PyTorch's result, and the decomposition's mask; its value where plain PyTorch's is not finite."""
    exact = op(*plain(args), **plain(kwargs))
    if all(type(arg) is not Cotangent or arg.ignored is None for arg in args):
        return wrapped(exact)
    return merge(exact, _decompositions()[op](*args, **kwargs))
