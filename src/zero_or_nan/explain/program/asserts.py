"""What kernels of a GPU assert of their arguments.

On the CPU, a wrong index or a probability above 1 is an error. On a GPU it is an assert in a kernel, and after it every
call on this GPU fails until the process ends. The user's own numbers came through these kernels. But code that runs
again gets other numbers, and these must not end the user's program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...ignoring.inside import Mode

Given = dict[str, Any]
"""The arguments of an operator, by their names."""


class _Asserting(Mode):
    """Raises an error in place of the kernel's assert."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if would_assert(func, args, kwargs or {}):
            raise IndexError(f"{func} got an index, a label or a probability that is out of range")
        return func(*args, **(kwargs or {}))


def are_possible() -> bool:
    """Whether the program computes on a GPU."""
    return torch.cuda.is_initialized()


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


def _from_either_end(given: Given) -> bool:
    return _within(given["index"], -_size(given), _size(given) - 1)


def _anywhere(given: Given) -> bool:
    return _within(given["index"], -given["self"].numel(), given["self"].numel() - 1)


def _of_each_dimension(given: Given) -> bool:
    dim = 0
    for index in given["indices"]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        size = given["self"].shape[dim]
        if index is not None and not is_mask and not _within(index, -size, size - 1):
            return False
        dim += index.dim() if is_mask else 1
    return True


def _row(given: Given) -> bool:
    return _within(given["indices"], 0, len(given["weight"]) - 1)


def _label(given: Given) -> bool:
    labels, scores, ignored = given["target"], given["self"], given.get("ignore_index")
    classes = scores.shape[min(1, scores.dim() - 1)]
    return _within(labels if ignored is None else labels[labels != ignored], 0, classes - 1)


def _labels(given: Given) -> bool:
    return _within(given["target"], -1, given["self"].shape[-1] - 1)


def _probability(given: Given) -> bool:
    numbers = given.get("p", given["self"])
    return not isinstance(numbers, Tensor) or _within(numbers, 0, 1)


def _weights(given: Given) -> bool:
    return _within(given["self"], 0, torch.finfo(given["self"].dtype).max) and bool((given["self"].sum(-1) > 0).all())


_ASSERTED: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys("gather scatter scatter_add scatter_reduce".split(), _along_a_dimension),
    **dict.fromkeys("index_select index_add index_copy index_reduce".split(), _along_a_dimension),
    **dict.fromkeys("take put".split(), _anywhere),
    **dict.fromkeys("index index_put _index_put_impl _unsafe_index".split(), _of_each_dimension),
    **dict.fromkeys("embedding _embedding_bag _embedding_bag_forward_only".split(), _row),
    **dict.fromkeys("nll_loss_forward nll_loss2d_forward multi_margin_loss".split(), _label),
    "multilabel_margin_loss_forward": _labels,
    **dict.fromkeys("binary_cross_entropy bernoulli".split(), _probability),
    "index_fill": _from_either_end,
    "max_unpool2d": lambda given: _within(given["indices"], 0, math.prod(given["output_size"]) - 1),
    "multinomial": _weights,
    "poisson": lambda given: _within(given["self"], 0, math.inf),
    "repeat_interleave": lambda given: _within(given["repeats"], 0, math.inf),
    "_assert_async": lambda given: bool(given["self"]),
}
"""By the name of an operator: whether its kernel asserts nothing of these arguments."""
