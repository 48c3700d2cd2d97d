"""Runs code a second time, without side effects on the user's program.

With `rerun` and `on_copies`, a function of PyTorch can run again. A backward pass in `extra` is not the program's.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import Mode, gpu_in_use, home, is_sparse, stored, tree_map_only
from .tensors import Alone, in_several_processes, numbers_of, unseen

_extra: Counter[int] = Counter()
"""The number of extra passes that run now, by the thread that began them."""


def is_extra() -> bool:
    """Whether a backward pass in this thread is an extra pass of any watch."""
    return _extra[home()] > 0


@contextmanager
def extra() -> Iterator[None]:
    """While entered, backward passes in this thread are extra passes, which no watch reports on."""
    thread = home()
    _extra[thread] += 1
    try:
        yield
    finally:
        _extra[thread] -= 1


@contextmanager
def without_side_effects() -> Iterator[None]:
    """While entered, code does not change the state of random numbers, is not seen by modes, and shows no warnings."""
    gpus = gpu_in_use() or torch.cuda
    devices = range(gpus.device_count()) if gpus.is_initialized() else ()
    random = torch.random.fork_rng(list(devices), device_type=gpus.__name__.rpartition(".")[2])
    alone = Alone() if in_several_processes() else nullcontext()
    with unseen(), alone, without_asserts(), random, without_warnings():
        yield


class _OfThisThread:
    """The pattern of a filter that matches each warning of one thread."""

    def __init__(self) -> None:
        self.thread = home()

    def match(self, text: str) -> bool:
        return home() == self.thread


@contextmanager
def without_warnings() -> Iterator[None]:
    """While entered, this thread shows no warnings. `catch_warnings` would undo what other threads change."""
    only_here: Any = ("ignore", _OfThisThread(), Warning, None, 0)
    warnings.filters.insert(0, only_here)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with suppress(ValueError):  # another thread has put back the filters of before
            warnings.filters.remove(only_here)  # type: ignore[attr-defined]


@contextmanager
def rerun() -> Iterator[None]:
    """As `without_side_effects`, for code that runs a second time: it also records no graph."""
    with without_side_effects(), torch.no_grad():
        yield


def on_copies(things: Any, change: Callable[[Tensor], Tensor] | None = None) -> Any:
    """The arguments with a copy of each tensor, so that a function that runs again changes nothing."""

    def copied(tensor: Tensor) -> Tensor:
        copy = tensor.detach()
        here = numbers_of(tensor)
        if change is not None and here is not None and not is_sparse(copy):
            return change(copy)
        copy = copy.clone() if here is not None or not tensor.is_sparse else copy
        if change is None or here is None:
            return copy
        changed = change(here)
        copy = copy.to(changed.dtype)
        stored(copy).copy_(changed)
        return copy

    return tree_map_only(Tensor, copied, things)


class RandomState(NamedTuple):
    """The states of the generators at one time."""

    cpu: Tensor
    gpus: list[Tensor]

    @classmethod
    def now(cls) -> RandomState:
        gpus = gpu_in_use()
        return cls(torch.get_rng_state(), [] if gpus is None else gpus.get_rng_state_all())

    def put_back(self) -> None:
        """Go back to these states."""
        torch.set_rng_state(self.cpu)
        if self.gpus:
            gpu_in_use().set_rng_state_all(self.gpus)

    def has_changed(self) -> bool:
        """Whether random numbers were drawn since then. GPUs that were first used since then do not count."""
        cpu, gpus = RandomState.now()
        return not all(itertools.starmap(torch.equal, ((self.cpu, cpu), *zip(self.gpus, gpus, strict=False))))


# What a GPU's kernels assert about their arguments. On the CPU, a wrong index or a probability above 1 raises an error.
# On a GPU, it fails an assert in a kernel, and then every call on this GPU fails until the process ends. The user's own
# numbers passed these asserts. But code that runs again gets other numbers, which must not end the user's program.

Given = dict[str, Any]
"""The arguments of an operator, by their names."""


class _Asserting(Mode):
    """Raises an error in place of the kernel's assert."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if would_assert(func, args, kwargs or {}):
            raise IndexError(f"{func} got an index, a label or a probability that is out of range")
        return func(*args, **(kwargs or {}))


def are_possible() -> bool:
    """Whether a kernel could assert, because the program computes on a GPU."""
    return gpu_in_use() is torch.cuda


def without_asserts() -> AbstractContextManager[Any]:
    """While entered, an operator whose kernel would assert raises an error before it runs."""
    return _Asserting() if are_possible() else nullcontext()


def would_assert(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the kernel of an operator would assert, if it ran on a GPU.

    >>> would_assert(torch.ops.aten.gather.default, (torch.ones(2), 0, torch.tensor([2])), {})
    True
    """
    holds = _ASSERTED.get(func.overloadpacket.__name__.rstrip("_"))
    if holds is None:
        return False
    return not holds(dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs)


def _within(numbers: Tensor, least: float, most: float) -> bool:
    return not numbers.numel() or bool(((numbers >= least) & (numbers <= most)).all())


def _size(given: Given) -> int:
    """The size of the dimension along which an index counts."""
    return given["self"].shape[given["dim"]] if given["self"].dim() else 1


def _along_a_dimension(given: Given) -> bool:
    return _within(given["index"], 0, _size(given) - 1)


def _of_each_dimension(given: Given) -> bool:
    dim = 0
    for index in given["indices"]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        size = given["self"].shape[dim]
        if index is not None and not is_mask and not _within(index, -size, size - 1):
            return False
        dim += index.dim() if is_mask else 1
    return True


def _label(given: Given) -> bool:
    labels, scores, ignored = given["target"], given["self"], given.get("ignore_index")
    classes = scores.shape[min(1, scores.dim() - 1)]
    return _within(labels if ignored is None else labels[labels != ignored], 0, classes - 1)


def _probability(given: Given) -> bool:
    numbers = given.get("p", given["self"])
    return not isinstance(numbers, Tensor) or _within(numbers, 0, 1)


def _weights(given: Given) -> bool:
    return _within(given["self"], 0, torch.finfo(given["self"].dtype).max) and bool((given["self"].sum(-1) > 0).all())


_ASSERTED: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys("gather scatter scatter_add scatter_reduce".split(), _along_a_dimension),
    **dict.fromkeys("index_select index_add index_copy index_reduce".split(), _along_a_dimension),
    **dict.fromkeys(
        "take put".split(), lambda given: _within(given["index"], -given["self"].numel(), given["self"].numel() - 1)
    ),
    **dict.fromkeys("index index_put _index_put_impl _unsafe_index".split(), _of_each_dimension),
    **dict.fromkeys(
        "embedding _embedding_bag _embedding_bag_forward_only".split(),
        lambda given: _within(given["indices"], 0, len(given["weight"]) - 1),
    ),
    **dict.fromkeys("nll_loss_forward nll_loss2d_forward multi_margin_loss".split(), _label),
    "multilabel_margin_loss_forward": lambda given: _within(given["target"], -1, given["self"].shape[-1] - 1),
    **dict.fromkeys("binary_cross_entropy bernoulli".split(), _probability),
    "index_fill": lambda given: _within(given["index"], -_size(given), _size(given) - 1),
    "max_unpool2d": lambda given: _within(given["indices"], 0, math.prod(given["output_size"]) - 1),
    "multinomial": _weights,
    "poisson": lambda given: _within(given["self"], 0, math.inf),
    "repeat_interleave": lambda given: _within(given["repeats"], 0, math.inf),
    "_assert_async": lambda given: bool(given["self"]),
}
"""By the name of an operator, a check that its kernel accepts these arguments without an assert."""
