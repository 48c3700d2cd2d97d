"""The numbers of a tensor: where they are, and whether they are finite.

A dense tensor has its numbers in its own memory. A sparse tensor stores some of its elements: a product skips the
others, so it ignores the other factor there, and it uses an element stored as 0. Other tensors have a *form*: a jagged
tensor has its numbers in a dense tensor, a DTensor in several processes. All other files ask a tensor's form, and need
not know which forms there are.

A sum with a NaN or an infinity in it is never finite. A sum is therefore a quick check: it is several times faster than
`isnan().any()`. A sum of finite numbers may overflow, so a check may call finite numbers "not finite". It never calls
NaN or infinity "finite".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .mask import core, extent

_functorch: Any = torch._C._functorch

has_wrapper: Callable[[Any], bool] = _functorch.is_functorch_wrapped_tensor
inside_wrapper: Callable[[Any], Any] = _functorch.get_unwrapped
"""Whether a transform of `torch.func` has wrapped a tensor, and the tensor inside of the outermost wrapper."""

joined = torch._C._nn.flatten_dense_tensors
"""The elements of several tensors of one dtype in one tensor, which takes less time than `torch.cat`."""


class Form:
    """The form of dense tensors, and of all others for which there is no other form. Those override what differs."""

    can_be_recorded = True
    """Whether a gradient of this form can be differentiated again."""

    is_shared = False
    """Whether several processes have parts of such a tensor, so that all of them have to decide alike."""

    def values(self, tensor: Any) -> Any:
        """The tensor to whose elements a mask belongs."""
        return tensor

    def with_values(self, tensor: Any, values: Any) -> Any:
        """The tensor with other values."""
        return values

    def here(self, tensor: Any) -> Any:
        """The values that this process has; None if it has only a term of each."""
        return self.values(tensor)

    def not_zero(self, tensor: Any) -> Tensor:
        """A mask of the values that are not 0, NaN included."""
        return self.values(tensor) != 0  # type: ignore[no-any-return]

    def reader(self, node: Any) -> Any:
        """A node with a cotangent of this form, as a formula of the library reads its saved tensors."""
        return node

    def watching(self) -> Any:
        """The mode in which a derivative runs if it gets a cotangent of this form; None if it needs none."""
        return None


DENSE = Form()

_OTHERS: list[Any] = []


def register(form: type) -> type:
    """Add a form. It says which tensors it has (`has`), and what a derivative gets in their place (`cotangent`).

    What a form that several processes share has as well is in `extras.distributed`.
    """
    _OTHERS.append(form())
    return form


def shared_forms() -> list[Any]:
    """The forms of tensors that several processes share, if there are such processes."""
    found = [form for form in _OTHERS if form.is_shared and form.made_by in sys.modules]
    return found if found and torch.distributed.is_initialized() else []


def form_of(thing: Any) -> Any:
    """The form of a tensor; for any other object `DENSE`."""
    if type(thing) is not Tensor and isinstance(thing, Tensor):
        for form in _OTHERS:
            if form.has(thing):
                return form
    return DENSE


def is_dense(thing: Any) -> bool:
    """True if there is no other form for a tensor."""
    return form_of(thing) is DENSE


def values_of(thing: Any) -> Any:
    """The tensor to whose elements a tensor's mask belongs; any other object unchanged."""
    return form_of(thing).values(thing)


def with_values(tensor: Any, values: Any) -> Any:
    """A tensor of the same form, with other values."""
    return form_of(tensor).with_values(tensor, values)


def not_zero(tensor: Any) -> Tensor:
    """A mask of a tensor's values that are not 0, NaN included."""
    found: Tensor = form_of(tensor).not_zero(tensor)
    return found


def is_wrapped(tensor: Tensor) -> bool:
    """True if a tensor is a wrapper that a transform of `torch.func` made, such as the batched tensors of `vmap`."""
    return bool(has_wrapper(tensor) or _functorch.is_legacy_batchedtensor(tensor))


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside of all wrappers of `torch.func`; the tensor itself if it has none."""
    while has_wrapper(tensor):
        tensor = inside_wrapper(tensor)
    return tensor


_SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


def is_sparse(thing: Any) -> bool:
    """True if this is a sparse tensor."""
    return isinstance(thing, Tensor) and thing.layout in _SPARSE


def stored(sparse: Tensor) -> Tensor:
    """The elements that a sparse tensor stores."""
    return sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()


def stored_at(sparse: Tensor) -> Tensor:
    """The indices of the elements that a tensor in COO layout stores, with a row for each dimension."""
    return sparse._indices()


def total(tensor: Tensor, *dim: int, keepdim: bool = False) -> Tensor:
    """The sum over some dimensions, or over all. Half precision is summed in float32, because it overflows early."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    return tensor.sum(dim, keepdim, dtype=wide) if dim else tensor.sum(dtype=wide)


def is_number(scalar: Tensor) -> bool:
    """True if a tensor of one element is neither NaN nor infinite."""
    value = scalar.item()
    return bool(value - value == 0)  # inf - inf is NaN


def all_finite(tensor: Tensor) -> bool:
    """True if all elements are finite, and so is their sum."""
    return is_number(total(tensor))


def has_nan(tensor: Tensor) -> bool:
    """True if an element may be NaN. Elements inf and -inf together also give True."""
    number = tensor.sum().item()
    return number != number


def any_nan(results: Iterable[Any]) -> bool:
    """True if one of a derivative's results may have a NaN. None stands for a result that is not needed."""
    return any(isinstance(result, Tensor) and has_nan(result) for result in results)


def finite_part(tensor: Tensor) -> Tensor:
    """The tensor with 0 in place of each element that is not finite. The strides stay the same if possible."""
    if tensor.is_conj():  # it stays conjugate: a kernel may choose by that, too, in which order it adds
        return finite_part(tensor.conj()).conj()
    small = core(tensor)
    finite = small.nan_to_num(0.0, 0.0, 0.0) if not tensor.is_complex() else small.where(small.isfinite(), 0)
    if finite.stride() != small.stride() and extent(small) >= small.numel():
        finite = small.new_empty_strided(small.size(), small.stride()).copy_(finite)
    return finite if small is tensor else finite.expand(tensor.shape)
