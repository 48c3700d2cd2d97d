"""The numbers of a tensor: which are not finite, and where they are in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from ..masks.mask import anywhere
from ..masks.numbers import form_of, is_wrapped, total
from .unseen import unseen

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_DENSE = (Tensor, Parameter)

_SMALL = 10_000
"""Tensors with at most this many elements are added up together: for these, calling PyTorch takes most of the time."""

_MOST_KEPT = 16
_MOST_SMALL = 100_000
"""How many masks are kept, and how many elements of small ones."""

T = TypeVar("T")


def tensors_in(things: Any) -> list[Tensor]:
    """The tensors in arguments or results, at any depth."""
    return each_in(things, Tensor)


def each_in(things: Any, kind: type[T]) -> list[T]:
    """The instances of a type in arguments or results, at any depth."""
    found: list[T] = []
    left = [things]
    while left:
        thing = left.pop()
        if isinstance(thing, kind):
            found.append(thing)
        elif isinstance(thing, (tuple, list)):
            left += thing[::-1]
        elif isinstance(thing, dict):
            left += [*thing.values()][::-1]
    return found


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor stores some of its elements only."""
    return tensor.layout in _SPARSE


def stored(tensor: Tensor) -> Tensor:
    """The elements that a sparse tensor stores, in the same memory."""
    tensor = tensor.detach()
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def memory(tensor: Tensor) -> Any:
    """The storage that holds the numbers of a tensor. Views, detached and saved tensors share it."""
    if tensor.layout is not torch.strided and is_sparse(tensor):
        tensor = stored(tensor)
    return tensor.untyped_storage()


def address(tensor: Tensor) -> int | None:
    """Which memory this is, as a number; None if the tensor has no memory of its own."""
    try:
        return int(memory(tensor)._cdata)
    except (RuntimeError, TypeError):
        return None


def numbers_of(tensor: Any) -> Tensor | None:
    """The numbers of a tensor, or None if they are not floats or cannot be read.

    For a distributed tensor these are the numbers of its part in this process, for a sparse one those that it stores.
    Numbers of eight bits, and complex numbers of two halves, are widened.
    """
    if type(tensor) not in _DENSE:
        if not isinstance(tensor, Tensor):
            return None
        form = form_of(tensor)
        part = form.here(tensor) if form.is_shared else tensor
        if part is None or type(part).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        tensor = part.as_subclass(Tensor)
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    if tensor.is_meta or tensor.is_nested or is_wrapped(tensor):
        return None
    if tensor.layout is not torch.strided:
        if not is_sparse(tensor):
            return None
        tensor = stored(tensor)
    if not tensor.untyped_storage().nbytes() or not tensor.numel():
        return None
    if dtype.itemsize == 1:  # PyTorch cannot add up numbers of eight bits, nor widen two numbers in one byte
        return None if "x2" in str(dtype) else tensor.detach().to(torch.float32)
    if dtype is torch.complex32:  # nor add these up
        return tensor.detach().to(torch.complex64)
    return tensor


def unreadable_layout(tensor: Tensor) -> str:
    """The layout of a tensor whose numbers `numbers_of` cannot read because of it; empty if it can."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is torch.strided or is_sparse(tensor):
        return ""
    return str(tensor.layout).removeprefix("torch.").removeprefix("_")


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite.

    Any NaN or inf makes the sum NaN or inf. Large finite elements may do so too, so such a tensor is checked element by
    element.
    """
    number = total(tensor).item()
    return bool(number - number == 0) or is_finite_at_each(tensor)


def is_finite_at_each(tensor: Tensor) -> bool:
    """The same where the sum of all elements is not finite. A finite number minus itself is 0, any other NaN."""
    return bool(total(tensor - tensor).item() == 0)


def not_finite(tensor: Tensor) -> Tensor:
    """A mask of the elements that are NaN or infinite; on a CPU faster than `torch.isfinite`."""
    difference = tensor - tensor  # 0, or NaN
    return difference.ne(difference)


class Masks:
    """The masks of the elements that are not finite, for the last tensors that were looked at.

    What one function or node passes on is what the next one gets, and its mask is asked for again. The masks that are
    kept are few, and together not larger than two of the last one, or they are small.
    """

    def __init__(self) -> None:
        self._size = 0
        self._kept: dict[int, tuple[tuple[Any, ...], StorageWeakRef, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor | None:
        """A mask of the elements that are NaN or infinite, which nobody may change; None if there are none."""
        value = total(tensor).item()  # even of what is kept, for NumPy may have written to it
        return None if value - value == 0 else self.of_bad(tensor)

    def of_bad(self, tensor: Tensor) -> Tensor | None:
        """The same if it is known already that the sum of the elements is not finite."""
        is_kept = not tensor.is_inference()
        if is_kept:
            storage = tensor.untyped_storage()
            layout = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
            key, at = storage._cdata, (tensor._version, *layout)
            kept = self._kept.get(key)
            if kept is not None and kept[0] == at:
                return kept[2]
        mask = not_finite(tensor)
        if not any_of(mask):
            return None
        if is_kept:
            self._keep(key, at, StorageWeakRef(storage), mask)
        return mask

    def _keep(self, key: int, at: tuple[Any, ...], storage: StorageWeakRef, mask: Tensor) -> None:
        _, _, before = self._kept.pop(key, (None, None, None))
        self._size += mask.numel() - (0 if before is None else before.numel())
        while len(self._kept) >= _MOST_KEPT or self._kept and self._size > max(_MOST_SMALL, 2 * mask.numel()):
            self._size -= self._kept.pop(next(iter(self._kept)))[2].numel()
        self._kept[key] = at, storage, mask

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0


def any_of(mask: Tensor) -> bool:
    """Whether an element of a mask is True."""
    return bool(anywhere(mask))


def beyond(mask: Tensor, other: Tensor) -> Tensor | None:
    """The elements of a mask that are not in another of the same shape; None if there are none."""
    if torch.equal(mask, other):  # the usual case, in one step
        return None
    more = mask & ~other
    return more if any_of(more) else None


def are_finite(values: Any) -> bool:
    """Whether all tensors at any depth are finite. Tensors whose numbers cannot be read are not checked."""
    return all(is_finite(here) for here in map(numbers_of, tensors_in(values)) if here is not None)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors are finite. The answer is fetched from their device at once."""
    with unseen():  # otherwise a surrounding `explain` would watch these sums
        return _all_finite(tensors)


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    usual: list[Tensor] = []
    others: list[Tensor] = []
    for tensor in tensors:
        if (
            type(tensor) is Tensor
            and tensor.dtype is torch.float32
            and tensor.is_cpu
            and tensor.layout is torch.strided
        ):
            usual.append(tensor)
        else:
            here = numbers_of(tensor)
            if here is not None:
                others.append(torch.view_as_real(here) if here.is_complex() else here)
    if not usual and not others:
        return True
    with torch.no_grad():
        totals = [tensor.sum() for tensor in usual if tensor.numel() > _SMALL]
        small = [tensor for tensor in usual if tensor.numel() <= _SMALL]
        if small:
            totals.append(flatten_dense_tensors(small).sum())
        if others:
            first = others[0].device
            wide = [total(tensor).to(first, torch.float64) for tensor in others]
            totals.append(torch.stack(wide).sum())
        is_fine = all((number := each.item()) - number == 0 for each in totals)
        return is_fine or all(is_finite(tensor) for tensor in (*usual, *others))


def first_entries(mask: Tensor, most: int = 5) -> list[tuple[int, ...]]:
    """The indices of the first elements of a mask that are True."""
    return [tuple(entry) for entry in mask.nonzero()[:most].tolist()]


def first_stored(tensor: Tensor, mask: Tensor) -> list[tuple[int, ...]] | None:
    """The same indices in a sparse tensor, if the mask is for what it stores; None for layouts that cannot tell."""
    if mask.shape != stored(tensor).shape or tensor.layout not in (torch.sparse_coo, torch.sparse_csr):
        return None
    if tensor.layout is torch.sparse_csr and tensor.dim() > 2:  # a batch
        return None
    indices = tensor.detach().to_sparse_coo()._indices().T
    return [(*indices[at].tolist(), *rest) for at, *rest in first_entries(mask)]
