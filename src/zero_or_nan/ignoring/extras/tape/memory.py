"""A storage, and a second memory beside it: the same numbers, but 0 at each ignored element, and which elements count.

The identity of a storage is `key_of` each tensor in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from ....masks.cotangent import Cotangent, Run
from ....masks.mask import Mask, all_count, full

_ALIKE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Lost(Exception):
    """The tape can't follow what the user's backward does.

    Attributes:
        at_once: whether a contaminated number may have gone somewhere that the pass can't check.
    """

    def __init__(self, reason: str, at_once: bool = False) -> None:
        super().__init__(reason)
        self.at_once = at_once


class Memory:
    """A storage, with a second memory beside it. Each part is one flat tensor; a complex number is two real ones.

    Attributes:
        ref: the storage. It may be freed while this object exists.
        plain: what operators have written there.
        values: the same, repaired: 0 at each ignored element. If nothing is repaired, it is `plain` itself. None for a
            constant: then `plain` is right.
        counts: False at each ignored element.
        empty: True at each element that is a sum of nothing, so far: zeros that were just made. It counts, but a sum
            of it and of ignored elements does not. None if there is no such element.
    """

    def __init__(self, tensor: Tensor, is_copied: bool = True) -> None:
        self.ref: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.dtype = _real(tensor.dtype)
        self.plain: Tensor | None = _flat(tensor).clone() if is_copied else None
        self.values: Tensor | None = None
        self.counts: Tensor | None = None
        self.empty: Tensor | None = None

    def check(self, tensor: Tensor) -> None:
        """Raises `Lost` if a part of the storage differs from what operators have written there."""
        if self.values is not None and _real(tensor.dtype) is not self.dtype:
            raise Lost("it reads numbers as another dtype")
        if self.plain is not None and not same_bits(_part(self.plain, tensor), _written(tensor)):
            raise Lost("its tensors are written without an operator, as by a kernel")

    def follows(self, tensor: Tensor, in_sum: bool = False) -> bool:
        """Whether a part of the storage has ignored or repaired elements; or empty ones, which matter in a sum."""
        if self.values is None or self.counts is None or self.plain is None:
            return False
        return (
            not all_count(_part(self.counts, tensor))
            or self.values is not self.plain
            and not same_bits(_part(self.plain, tensor), _part(self.values, tensor))
            or in_sum
            and self.empty is not None
            and bool(_part(self.empty, tensor).any())
        )

    def read(self, tensor: Tensor, how: str = "") -> tuple[Tensor, Mask]:
        """What a tensor in this storage would be, and its mask.

        `how`: "in a sum" for a mask that is False at empty elements, too; "empty" for a mask of these alone.
        """
        assert self.values is not None and self.counts is not None
        value, counts = _part(self.values, tensor), _part(self.counts, tensor)
        if how and self.empty is not None:
            counted = _part(self.empty, tensor).logical_not()
            counts = counted if how == "empty" else counts & counted
        elif how == "empty":
            counts = torch.ones_like(counts)
        if tensor.is_complex():
            value, counts = torch.view_as_complex(value), counts.any(-1)
            value = value.conj().resolve_conj() if tensor.is_conj() else value
        value = value.neg() if tensor.is_neg() else value
        return value, None if all_count(counts) else counts

    def twin(self, tensor: Tensor, step: Run, how: str) -> Tensor:
        """What an operator gets in place of a tensor in this storage: a cotangent."""
        value, mask = self.read(tensor, how)
        return Cotangent(value, mask, step) if value.is_floating_point() or value.is_complex() else value

    def follow(self, tensor: Tensor, is_written: bool = False) -> None:
        """From now on, any of its elements may be ignored, or repaired as well. So far all of them count."""
        if self.values is None:
            self.plain = _flat(tensor).clone() if self.plain is None else self.plain
            self.values = self.plain
            self.counts = torch.ones_like(self.values, dtype=torch.bool)
        if is_written and self.values is self.plain:
            self.values = self.values.clone()

    def write(self, tensor: Tensor, value: Tensor, mask: Mask, empty: Mask = None) -> None:
        """Note what the user's code has written into a tensor in this storage, and what it should have been."""
        if self.values is None and empty is None and _covers(tensor):  # as most results: in a third of the time
            self.plain = _flattened(tensor)
            self.values = self.plain if value is tensor else _flattened(value)
            self.counts = _flattened(full(mask, tensor).expand(tensor.shape))
            return
        self.follow(tensor, is_written=True)
        assert self.plain is not None and self.values is not None and self.counts is not None
        if empty is not None and self.empty is None:
            self.empty = torch.zeros_like(self.counts)
        if tensor.is_complex():
            value = torch.view_as_real(value)
            mask, empty = (each if each is None else each[..., None] for each in (mask, empty))
        _put(_part(self.plain, tensor), _written(tensor))
        _put(_part(self.values, tensor), value)
        counts = _part(self.counts, tensor)
        _put(counts, torch.ones_like(counts) if mask is None else mask.expand(counts.shape))
        if self.empty is not None:
            part = _part(self.empty, tensor)
            _put(part, torch.zeros_like(part) if empty is None else empty.expand(part.shape))

    def differs(self) -> bool:
        """Whether the storage has contaminated numbers."""
        plain, values = self.plain, self.values
        return plain is not None and values is not None and values is not plain and not same_bits(plain, values)


def key_of(tensor: Any) -> int | None:
    """The identity of a tensor's storage; None if it has no plain one."""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _flat(tensor: Tensor) -> Tensor:
    """The whole storage as one flat tensor."""
    storage, dtype = tensor.untyped_storage(), _real(tensor.dtype)
    flat = torch.empty(0, dtype=dtype, device=tensor.device)
    return flat.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def _flattened(tensor: Tensor) -> Tensor:
    """A copy of a tensor's elements as a flat tensor."""
    return tensor.clone(memory_format=torch.contiguous_format).view(-1)


def _covers(tensor: Tensor) -> bool:
    """True if a tensor is the whole of its storage, as the storage has it."""
    whole = tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()
    return whole and not tensor.is_complex() and not tensor.is_neg()


def _written(tensor: Tensor) -> Tensor:
    """What the storage of a tensor has in its place."""
    return _part(_flat(tensor), tensor) if tensor.is_complex() or tensor.is_neg() else tensor


def _part(flat: Tensor, tensor: Tensor) -> Tensor:
    """The part of a flat tensor where a tensor is in its storage. A complex one has one more dimension, of size 2."""
    if not tensor.is_complex():
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return flat.as_strided(
        (*tensor.size(), 2), (*(2 * step for step in tensor.stride()), 1), 2 * tensor.storage_offset()
    )


def _put(part: Tensor, values: Tensor) -> None:
    """Write into a part of a flat tensor. Where its elements share memory, an element counts if one of them does."""
    if 0 in part.stride() and part.numel():
        shared = [d for d, step in enumerate(part.stride()) if not step]
        small = values.any(shared[0], keepdim=True) if values.dtype is torch.bool else values.narrow(shared[0], 0, 1)
        _put(part.narrow(shared[0], 0, 1).squeeze(shared[0]), small.squeeze(shared[0]))
    else:
        part.copy_(values)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors have the same bits, so that NaN equals NaN."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    alike = _ALIKE[a.dtype.itemsize]
    a, b = a.view(alike), b.view(alike)
    if a.numel() < 1 << 15 or a.shape != b.shape or not (a.is_cpu and a.is_contiguous() and b.is_contiguous()):
        return torch.equal(a, b)
    return not (a ^ b).view(torch.uint8).amax().item()  # takes a third of the time, if there are many elements
