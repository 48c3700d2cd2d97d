"""Functions that move elements, copy them, or put zeros around them. The mask moves with the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, unwrap, written_mask
from ...masks.mask import Mask, full, laid_out, reshaped
from ..conditions import ALWAYS
from ..numerics import numerics
from ..registry import function, rule, transfer

function(
    """
    Cat Expand Flip Permute PixelShuffle PixelUnshuffle Repeat ReshapeAlias Roll Squeeze Stack T Transpose UnsafeView
    Unsqueeze View
    """,
    moves=True,
    safe_if=ALWAYS,
)
function("AsStridedScatter DiagEmbed", safe_if=ALWAYS)
function("torch.autograd._functions.tensor.Resize", moves=True, safe_if=ALWAYS)

# Functions that select a part of the elements, at indices that do not depend on values.

function(
    "ConstantPadNd Diagonal Select Slice Split SplitWithSizes Tril Triu Unbind UnsafeSplit UnsafeSplitWithSizes",
    selects=True,
    moves=True,
    safe_if=ALWAYS,
)
function("AsStrided", selects=True, safe_if=ALWAYS)
function("Chunk Complex Polar ViewAsReal", selects=True)
function("NarrowCopy", since="2.13", selects=True)

# Nested tensors: PyTorch has special names for some of their nodes.

function(
    """
    ChunkBackwardAutogradNestedTensor0 SelectBackwardAutogradNestedTensor0
    SplitWithSizesBackwardAutogradNestedTensor0 UnbindBackwardAutogradNestedTensor0
    """,
    selects=True,
    moves=True,
    safe_if=ALWAYS,
)
function(
    """
    NestedFromPaddedTensor NestedGetValues NestedViewFromJagged SqueezeBackwardAutogradNestedTensor0
    SqueezeBackwardAutogradNestedTensor1 ToPaddedTensor ViewBackwardAutogradNestedTensor0
    """,
    moves=True,
    safe_if=ALWAYS,
)

# No numbers are computed: the result shares memory with an argument, or is no tensor of floats.

numerics("detach", moves=True, makes="no graph")
numerics("isfinite isnan isinf", makes="no graph")
numerics(
    """
    detach_ view transpose t permute unsqueeze squeeze expand select split unbind
    """,
    moves=True,
    makes="nothing",
)
numerics("clone reshape contiguous movedim alias slice stack cat diagonal lift_fresh", moves=True)
numerics("_unsafe_view as_strided _reshape_alias", moves=True)
numerics(
    """
    __float__ __int__ __complex__ __index__ __array__ __get__ __set__ __len__ __bool__ __iter__ __hash__ __repr__
    __format__ __contains__ dim size numel stride is_contiguous is_floating_point data_ptr storage untyped_storage
    element_size type item tolist numpy requires_grad_ register_hook retain_grad view_as expand_as narrow chunk flatten
    unflatten swapaxes mT is_complex get_device register_post_accumulate_grad_hook is_nonzero 
    is_same_size storage_offset nelement ndimension is_leaf allclose equal share_memory_
    is_shared is_pinned is_tensor is_storage is_grad_enabled set_grad_enabled backward grad
    """,
    makes="nothing",
)

# Numbers come in from elsewhere, or are those that the memory has.

numerics("tensor as_tensor from_numpy frombuffer asarray scalar_tensor load new_tensor from_dlpack", makes="data")
numerics("empty empty_like empty_strided new_empty new_empty_strided empty_permuted", makes="memory")

# Random numbers come in. Of a dropout, other dtypes have the same ones.

numerics("normal uniform random exponential bernoulli", updates=True, draws="data")
numerics(
    """
    binomial cauchy geometric log_normal multinomial poisson rand rand_like randint randint_like randn randn_like
    randperm
    """,
    draws="data",
)
numerics("_standard_gamma _sample_dirichlet", draws="numbers")
numerics(
    """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout rrelu
    lstm gru rnn_tanh rnn_relu
    """,
    draws="places",
)


@transfer("View UnsafeView ReshapeAlias")
def _reshaped(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    return (None if results[0] is None else reshaped(mask, results[0].shape),)


def _zip(value: Any, mask: Any) -> Any:
    """A cotangent from a value and a mask, or a tuple or list of cotangents."""
    if isinstance(value, Tensor):
        return Cotangent(value, mask)
    masks = [None] * len(value) if mask is None else mask
    return type(value)(Cotangent(v, m) for v, m in zip(value, masks, strict=True))


@rule(
    *"""
    channel_shuffle diagonal diagonal_copy expand expand_copy flip gather index _unsafe_index index_select movedim
    native_channel_shuffle permute permute_copy pixel_shuffle pixel_unshuffle repeat roll rot90 select slice split
    split_with_sizes squeeze squeeze_copy t take transpose unbind unfold unsafe_split unsafe_split_with_sizes unsqueeze
    """.split()
)
def carried(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Views, copies of views and gathers: each element of the result is an element of the cotangent."""
    value = op(grad.value, *args, **kwargs)
    kwargs.pop("sparse_grad", None)
    return _zip(value, None if grad.mask is None else op(grad.mask, *args, **kwargs))


@rule("_reshape_alias", "_unsafe_view", "reshape", "view", "view_copy")
def viewed(op: Any, grad: Any, size: Any, *args: Any) -> Any:
    """A view of the value. The mask may have other strides, so it is reshaped, and copied if a view is impossible."""
    if isinstance(size, torch.dtype):
        return Cotangent(op(grad.value, size))
    return Cotangent(op(grad.value, size, *args), None if grad.mask is None else grad.mask.reshape(size))


@rule("as_strided")
def strided(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """A view by strides, so the mask needs the value's memory layout."""
    mask = grad.mask
    if mask is not None:
        mask = op(laid_out(mask, grad.value), *args, **kwargs)
    return Cotangent(op(grad.value, *args, **kwargs), mask)


@rule("cat", "stack", "hstack", "vstack")
def joined(op: Any, parts: Any, *args: Any, **kwargs: Any) -> Any:
    """Cotangents that are joined, with zeros for an output that was not used."""
    value = op(unwrap(parts), *args, **kwargs)
    beside = next(part for part in parts if type(part) is Cotangent)
    masks = [written_mask(part, beside) for part in parts]
    if all(mask is None for mask in masks):
        return Cotangent(value)
    return Cotangent(value, op([full(m, unwrap(p)) for p, m in zip(parts, masks, strict=True)], *args, **kwargs))


@rule("view_as_real", "view_as_real_copy")
def as_real(op: Any, grad: Any) -> Any:
    """Both parts of an element count, or neither."""
    value = op(grad.value)
    return Cotangent(value, None if grad.mask is None else grad.mask.unsqueeze(-1).expand(value.shape))


@rule("view_as_complex", "view_as_complex_copy")
def as_complex(op: Any, grad: Any) -> Any:
    """An element counts if one of its parts counts."""
    return Cotangent(op(grad.value), None if grad.mask is None else grad.mask.any(-1))


@rule("complex", "polar")
def put_together(op: Any, real: Any, imag: Any) -> Any:
    """An element counts if one of its parts counts. One of the parts may be plain zeros."""
    value = op(unwrap(real), unwrap(imag))
    beside = real if type(real) is Cotangent else imag
    masks = [written_mask(part, beside) for part in (real, imag)]
    return Cotangent(value, None if None in masks else masks[0] | masks[1])  # type: ignore[operator]


@rule("constant_pad_nd")
def padded(op: Any, grad: Any, pad: Any, fill: Any = 0) -> Any:
    """Padding, also as the derivative of a crop. Elements that were cropped are ignored."""
    value = op(grad.value, pad, fill)
    return Cotangent(value, op(full(grad.mask, grad.value), pad, bool(fill != 0)))


@rule(
    "tril", "triu", "diag_embed", "slice_backward", "select_backward", "diagonal_backward", "trace_backward", "diag",
)  # fmt: skip
def surrounded(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The elements, surrounded by written zeros. The zeros are ignored."""
    value = op(grad.value, *args, **kwargs)
    return Cotangent(value, op(full(grad.mask, grad.value), *args, **kwargs))
