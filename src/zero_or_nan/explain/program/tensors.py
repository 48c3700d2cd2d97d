"""The numbers of the user's tensors: which are not finite, and where they are in memory.

Reading them takes operators of PyTorch. `unseen` hides these operators from the user's modes, PyTorch's profilers and
`torch.jit.trace`.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from ...ignoring.inside import (
    Mode,
    any_of,
    form_of,
    functions_unseen,
    is_profiled,
    is_sparse,
    is_wrapped,
    joined,
    modes_on,
    part_here,
    pop_mode,
    push_mode,
    set_recording,
    shared_forms,
    stored,
    stored_at,
    total,
)

_enable_profiler: Any = torch.autograd._enable_record_function  # type: ignore[attr-defined]
_is_traced = torch._C._is_tracing
_set_trace: Any = vars(torch._C)["_set_tracing_state"]


def unseen() -> AbstractContextManager[Any]:
    """While entered, no mode, subclass of Tensor, profiler or tracer sees the operators that are called."""
    is_watched = modes_on() or is_profiled() or _is_traced() or shared_forms()
    return _Unseen() if is_watched else functions_unseen()


def is_compiling() -> bool:
    """Whether PyTorch is tracing code, with tensors without numbers. Its own modes for this have a key."""
    return any(_are_torchs())


def _are_torchs() -> list[bool]:
    """Which of the modes for operators that are on are PyTorch's own."""
    modes = [torch._C._get_dispatch_stack_at(at) for at in range(modes_on())]
    return [getattr(mode, "_mode_key", None) is not None for mode in modes]


class _Here(threading.local):
    depth = 0


_here = _Here()


class _Unseen:
    """The same while there are dispatch modes, a profiler, a tracer, or tensors in several processes."""

    def __enter__(self) -> None:
        self.functions = functions_unseen()
        self.functions.__enter__()
        # PyTorch's own modes, such as that of fake tensors, have a key, and are below all other modes. They stay on.
        self.modes = [pop_mode(None) for is_own in _are_torchs() if not is_own]
        self.trace = torch._C._get_tracing_state() if _is_traced() else None
        if self.trace is not None:
            _set_trace(None)
        self.is_profiled = is_profiled()
        if self.is_profiled:
            _here.depth += 1
            _enable_profiler(False)
        self.alone = Alone() if shared_forms() else nullcontext()
        self.alone.__enter__()

    def __exit__(self, *details: Any) -> None:
        self.alone.__exit__(*details)
        if self.is_profiled:
            _here.depth -= 1
            _enable_profiler(not _here.depth)
        if self.trace is not None:  # PyTorch refuses this inside of a DTensor's operators
            _set_trace(self.trace)
        for mode in reversed(self.modes):
            push_mode(mode)
        self.functions.__exit__(*details)


# The numbers of a tensor.

_DENSE = (Tensor, Parameter)

_SMALL = 10_000
"""Tensors with at most this many elements are summed together, because calling PyTorch takes most of the time."""

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


def node_of(tensor: Tensor) -> Any:
    """The node of a tensor in the graph, or None.

    If code wrote to a view of a leaf under `no_grad`, PyTorch refuses to say whether the view has a node.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def here_of(tensor: Tensor) -> Any:
    """This process's part of a distributed tensor. Any other tensor is returned unchanged."""
    part = part_here(tensor)
    return tensor if part is None else part


def memory(tensor: Tensor) -> Any:
    """The storage that holds the numbers of a tensor. Views, detached and saved tensors share it."""
    tensor = tensor if type(tensor) in _DENSE else here_of(tensor)
    if tensor.layout is not torch.strided and is_sparse(tensor):
        tensor = stored(tensor.detach())
    return tensor.untyped_storage()


def address(tensor: Tensor) -> int | None:
    """A number that identifies the tensor's memory; None if the tensor has no memory of its own."""
    try:
        return int(memory(tensor)._cdata)
    except (RuntimeError, TypeError):
        return None


def numbers_of(tensor: Any) -> Tensor | None:
    """The numbers of a tensor; None if they are not floats, or can't be read.

    For a distributed tensor, these are the numbers of this process's part. For a sparse tensor, the stored numbers.
    8-bit numbers, and complex numbers of two halves, are widened.
    """
    if type(tensor) not in _DENSE:
        if not isinstance(tensor, Tensor):
            return None
        part = part_here(tensor)
        if getattr(part, "completed", False):  # the result of a collective that the program has waited for
            part = part.elem
        if part is None or type(part).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        tensor = part.as_subclass(Tensor)
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    is_dense = tensor.layout is torch.strided
    if tensor.is_meta or tensor.is_nested or not is_dense and (not is_sparse(tensor) or is_wrapped(tensor)):
        return None
    tensor = tensor if is_dense else stored(tensor.detach())
    try:
        has_memory = tensor.untyped_storage().nbytes() > 0
    except NotImplementedError:  # a transform of `torch.func` has wrapped the tensor
        return None
    if not has_memory or not tensor.numel():
        return None
    if dtype.itemsize == 1:  # PyTorch cannot add up numbers of eight bits, nor widen two numbers in one byte
        return None if "x2" in str(dtype) else tensor.detach().to(torch.float32)
    if dtype is torch.complex32:  # nor add these up
        return tensor.detach().to(torch.complex64)
    return tensor


def is_shared(tensor: Tensor) -> bool:
    """Whether other processes have other parts of a tensor."""
    return bool(form_of(tensor).is_shared)


def unreadable_layout(tensor: Tensor) -> str:
    """The layout of a tensor, if `numbers_of` can't read its numbers because of this layout; else empty."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is torch.strided or is_sparse(tensor):
        return ""
    return str(tensor.layout).removeprefix("torch.").removeprefix("_")


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite."""
    return bad_in(tensor) is None


def bad_in(tensor: Tensor) -> Tensor | None:
    """Where the elements are NaN or infinite, as a tensor of bools; None if all elements are finite.

    Any NaN or inf makes the sum NaN or inf. Large finite elements may do so, too, so then each element is checked.
    """
    value = total(tensor).item()
    if value - value == 0:
        return None
    bad = not_finite(tensor)
    return bad if any_of(bad) else None


def bad_of(tensor: Any) -> Tensor | None:
    """Where a tensor is not finite; None if it is finite everywhere, or if its numbers can't be read."""
    here = numbers_of(tensor)
    return None if here is None else bad_in(here)


def bad_numbers_of(tensor: Any) -> Tensor | None:
    """The numbers of a tensor that is not finite; None if all numbers are finite, or if they can't be read."""
    here = numbers_of(tensor)
    return None if here is None or is_finite(here) else here


def not_finite(tensor: Tensor) -> Tensor:
    """Where the elements are NaN or infinite, as a tensor of bools. On a CPU, it is faster than `torch.isfinite`."""
    difference = tensor - tensor  # 0, or NaN
    return difference.ne(difference)


def beyond(bad: Tensor, other: Tensor) -> Tensor | None:
    """The bad elements that are not in another tensor of bools of the same shape; None if there are none."""
    if torch.equal(bad, other):  # the usual case, in one step
        return None
    more = bad & ~other
    return more if any_of(more) else None


def are_finite(values: Any) -> bool:
    """Whether all tensors at any depth are finite. Tensors whose numbers cannot be read are not checked."""
    return all(is_finite(here) for here in map(numbers_of, tensors_in(values)) if here is not None)


def unrecorded(function: Callable[..., T]) -> Callable[..., T]:
    """As `torch.no_grad()`, but Ctrl-C can't leave the recording of graphs switched off."""

    @functools.wraps(function)
    def run(*args: Any) -> T:
        recording = torch.is_grad_enabled()
        try:
            set_recording(False)
            return function(*args)
        finally:
            set_recording(recording)

    return run


_facts = attrgetter("__class__", "dtype", "is_cpu", "layout")
_USUAL = (Tensor, torch.float32, True, torch.strided)
"""The usual properties of a gradient."""


@unrecorded
def are_finite_at_once(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors are finite. The answer for all of them is fetched from their device together."""
    with unseen():  # otherwise a surrounding `explain` would watch these sums
        small: list[Tensor] = []
        large: list[Tensor] = []
        others: list[Tensor] = []
        for tensor in tensors:
            if _facts(tensor) == _USUAL:  # quicker than one by one
                (small if tensor.numel() <= _SMALL else large).append(tensor)
            else:
                here = numbers_of(tensor)
                if here is not None:
                    others.append(torch.view_as_real(here) if here.is_complex() else here)
        totals = [tensor.sum() for tensor in large]
        if small:  # one copy and one sum take less time than a sum for each, or than `torch.nn.utils.get_total_norm`
            totals.append(joined(small).sum())
        if others:
            first = others[0].device
            totals.append(torch.stack([total(tensor).to(first, torch.float64) for tensor in others]).sum())
        return all(math.isfinite(each.item()) for each in totals) or all(map(is_finite, (*small, *large, *others)))


def first_entries(elements: Tensor, most: int = 5) -> list[tuple[int, ...]]:
    """The indices of the first elements that are True."""
    return [tuple(entry) for entry in elements.nonzero()[:most].tolist()]


def first_stored(tensor: Tensor, elements: Tensor) -> list[tuple[int, ...]] | None:
    """The same indices in a sparse tensor, for elements of its stored numbers; None if the layout can't tell them."""
    if elements.shape != stored(tensor.detach()).shape or tensor.layout not in (torch.sparse_coo, torch.sparse_csr):
        return None
    if tensor.layout is torch.sparse_csr and tensor.dim() > 2:  # a batch
        return None
    indices = stored_at(tensor.detach().to_sparse_coo()).T
    return [(*indices[at].tolist(), *rest) for at, *rest in first_entries(elements)]


# Several processes.


def in_several_processes() -> bool:
    """Whether the program is one of several processes that exchange tensors."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class NeedsOthersError(RuntimeError):
    """Code that runs a second time needs the other processes, but these processes don't run it again."""


class Alone(Mode):
    """Refuses to communicate, because the other processes would not answer, and this process would wait forever."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_collective(func):
            raise NeedsOthersError(f"{func} needs the other processes")
        if any(kind.__module__.startswith("torch.distributed.") for kind in types):
            return NotImplemented  # first the tensor's own rule, which may call a collective
        return func(*args, **(kwargs or {}))


_COMMUNICATE = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
"""The libraries of operators that exchange tensors between processes."""


def is_collective(func: Any) -> bool:
    """Whether a function is an operator that exchanges tensors between processes. Its result may not be ready yet."""
    return str(func).partition(".")[0] in _COMMUNICATE
