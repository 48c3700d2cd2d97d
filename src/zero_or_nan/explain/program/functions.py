"""What is known of PyTorch's functions by their names, before they are called."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from .tensors import is_sparse, tensors_in

_PUBLIC = {
    "__truediv__": "div", "__rtruediv__": "div", "__itruediv__": "div", "true_divide": "div", "divide": "div",
    "__rdiv__": "div", "__idiv__": "div", "__div__": "div",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul",
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__rsub__": "sub", "__isub__": "sub",
    "rsub": "sub", "subtract": "sub", "__pow__": "pow", "__rpow__": "pow", "__ipow__": "pow", "__matmul__": "matmul",
    "__rmatmul__": "matmul", "__mod__": "remainder", "__rmod__": "remainder", "__neg__": "neg", "__abs__": "abs",
    "__getitem__": "getitem", "__setitem__": "setitem", "__floordiv__": "floor_divide",
}  # fmt: skip

_ALIASES = frozenset(
    """
__float__ __int__ __complex__ __index__ __array__
__get__ __set__ __len__ __bool__ __iter__ __hash__ __repr__ __format__ __contains__ dim size numel stride is_contiguous
is_floating_point data_ptr storage untyped_storage element_size type item tolist numpy requires_grad_ register_hook
retain_grad detach detach_ view view_as transpose t permute unsqueeze squeeze expand expand_as narrow select chunk split
unbind flatten unflatten movedim swapaxes mT is_complex get_device register_post_accumulate_grad_hook is_nonzero size_
has_names is_same_size storage_offset nelement ndimension isfinite isnan isinf is_leaf allclose equal cpu_ share_memory_
is_shared is_pinned is_tensor is_storage is_grad_enabled set_grad_enabled backward grad
""".split()
)
"""Functions that make no numbers: their result shares memory with an argument, or is no tensor of floats."""

REPLACES = frozenset("relu zero fill copy setitem masked_fill masked_scatter index_copy index_fill".split())
"""Functions that, in place, compute nothing from what they overwrite: each element is kept or replaced."""

_WRITES_BUFFERS = {F.batch_norm: 1, F.instance_norm: 1, torch.batch_norm: 3, torch.instance_norm: 3}
"""Functions that write to two of their arguments, beginning with this one, if the argument at position 5 is true."""

UPDATES = frozenset("add sub mul div lerp addcmul addcdiv normal uniform random exponential bernoulli".split())
"""Functions that optimizers call in place. If nothing is recorded, what they overwrite is not copied beforehand."""

MEANT = frozenset(
    """
softmax log_softmax logsumexp scaled_dot_product_attention multi_head_attention_forward cross_entropy gumbel_softmax
transformer_encoder_layer_forward _transformer_encoder_layer_fwd _native_multi_head_attention
""".split()
)
"""Functions for which an infinity is a way to leave an element out, wherever it came from."""

WEIGHS_ALL = frozenset("logsumexp cross_entropy nll_loss".split())
"""Functions of `MEANT` whose result is infinite only if every element was left out, or the one that counts."""
MAKES_DATA = frozenset(
    """
tensor as_tensor from_numpy frombuffer asarray scalar_tensor load empty empty_like empty_strided new_empty new_tensor
new_empty_strided empty_permuted from_dlpack
""".split()
)
"""Functions that only bring data in. A NaN in it is reported at the first function that computes with it."""

UNINITIALIZED = frozenset(name for name in MAKES_DATA if "empty" in name)
"""Those that leave the memory as it is."""


class Plan(NamedTuple):
    """What is known of a function before it is called.

    Attributes:
        name: its public name.
        is_checked: whether its result has to be checked.
        in_place: whether it changes its first argument.
    """

    name: str
    is_checked: bool
    in_place: bool


@functools.lru_cache(4096)
def plan_of(function: Any) -> Plan:
    """What the function's name says about it."""
    name = getattr(function, "__name__", type(function).__name__)
    changes = name in ("__setitem__",) or name.startswith("__i") and name.endswith("__") and name in _PUBLIC
    in_place = changes or (name.endswith("_") and not name.endswith("__"))
    public = _PUBLIC.get(name) or (name.rstrip("_") if in_place else name.removesuffix("_"))
    return Plan(public, name not in _ALIASES, in_place)


def overwritten_by(plan: Plan, args: Any) -> list[Tensor]:
    """The tensors that a call in place has overwritten. A fused optimizer also overwrites its states."""
    return [tensor for at in _written(f"{plan.name}_") for tensor in tensors_in(args[at : at + 1])]


@functools.cache
def _written(name: str) -> list[int]:
    """The positions of the arguments that an operator in place writes to; the gradients are only rescaled."""
    operator = getattr(torch.ops.aten, name, None) if name.startswith("_fused") else None
    if operator is None:
        return [0]
    arguments = enumerate(operator.default._schema.arguments)
    return [at for at, each in arguments if each.alias_info and each.alias_info.is_write and each.name != "grads"]


def buffers_of(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The buffers that a call writes to: the running statistics of a norm in training."""
    first = _WRITES_BUFFERS.get(function)
    if first is None:
        return []
    default = kwargs.get("training", kwargs.get("use_input_stats", function is F.instance_norm))
    if not (args[5] if len(args) > 5 else default):
        return []
    given = [*args[first : first + 2], kwargs.get("running_mean"), kwargs.get("running_var")]
    return [value for value in given if isinstance(value, Tensor)]


def is_recoverable(plan: Plan, args: Any) -> bool:
    """Whether the numbers that a call in place overwrites can be worked out after the call."""
    return (
        plan.in_place
        and plan.name in REPLACES
        and bool(args)
        and type(args[0]) in (Tensor, Parameter)
        and not is_sparse(args[0])
    )
