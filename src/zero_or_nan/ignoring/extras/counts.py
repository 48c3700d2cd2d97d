"""Counts the ignored elements that are not finite, so that `ignoring` does not hide a rising share of bad data."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...functions.graph import KINDS, TELLS_OF_HOOKS, can_be_read_again, function_of, run, saved_tensors
from ...masks.cotangent import Cotangent, mask_of, unwrap
from ...masks.mask import Mask
from ...masks.numbers import values_of
from ...replacing import put_back, replace
from ..engine.passes import COUNTING


@dataclass
class Counted:
    """How much `ignoring` kept out of the gradient, in all passes of a block.

    An element is counted if plain PyTorch would have multiplied its 0 by NaN or an infinity. Each pass counts only at
    the operator that has the most such elements. So a bad row that goes through ten layers is counted as one row.

    Attributes:
        passes: the number of backward passes that `ignoring` ran.
        kept_clean: the number of passes in which at least one element was counted.
        entries: the number of elements that were counted.
        rows: the number of rows that contain a counted element. A row is an index of dimension 0, the batch.
        of_rows: the number of all rows, in the passes of `kept_clean`.
        first, last: the first and the last pass in which an element was counted. The first pass of the block has the
            number 1. 0 means that no element was counted.
        functions: the number of counted elements for each forward function.
    """

    passes: int = 0
    kept_clean: int = 0
    entries: int = 0
    rows: int = 0
    of_rows: int = 0
    first: int = 0
    last: int = 0
    functions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        if not self.kept_clean:
            return f"nothing that is not finite was ignored, in {self.passes} backward passes"
        most, _ = self.functions.most_common(1)[0]
        since = (
            f"from the {_th(self.first)} to the {_th(self.last)}"
            if self.first < self.last
            else f"the {_th(self.first)}"
        )
        return (
            f"{self.entries} elements that are not finite were ignored, in {self.rows} of {self.of_rows} rows; in "
            f"{self.kept_clean} of {self.passes} backward passes, {since}, most at {most}"
        )


_COUNTS: list[Counted] = []
_HOOKS: set[str] = set()
"""The types of saved-tensor hooks that were entered while a block counted, on releases that don't report hooks."""
_LOCK = threading.Lock()


@contextmanager
def counting() -> Iterator[Counted]:
    """Count the ignored elements that are NaN or infinite, in all passes of `ignoring` in a block.

    If a pass has something to keep out of the gradient, counting reads again the tensors that each operator saved. The
    gradients have the same bits with and without counting. A saved tensor that only a hook can restore, as in a
    checkpoint, is not counted.

    Returns:
        The counts. They grow until the block ends. You can read them once an epoch, or print them at the end.

    >>> import torch
    >>> from zero_or_nan import ignoring
    >>> x = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [4.0, 5.0]])
    >>> layer = torch.nn.Linear(2, 1)
    >>> with ignoring.counting() as counted:
    ...     ignoring.backward(layer(x)[[0, 2]].sum())
    >>> counted.entries, counted.rows, counted.of_rows
    (1, 1, 3)
    """
    counted = Counted()
    with _LOCK:
        _COUNTS.append(counted)
        COUNTING[:] = [_one_more_pass]
    if not TELLS_OF_HOOKS:
        replace(counted, saved_tensors_hooks, "__enter__", _noting)
    try:
        yield counted
    finally:
        put_back(counted)
        with _LOCK:
            _COUNTS[:] = [each for each in _COUNTS if each is not counted]
            COUNTING[:] = [_one_more_pass] if _COUNTS else []


def _noting(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Note the type of each saved-tensor hook: from then on, no saved tensor is read if reading may run a hook."""

    def entered(hooks: Any) -> Any:
        _HOOKS.add(type(hooks).__name__)
        return enter(hooks)

    return entered


def _one_more_pass() -> Count:
    """Count a pass that begins."""
    with _LOCK:
        for counted in _COUNTS:
            counted.passes += 1
    return Count()


class Count:
    """The ignored elements of one pass that are not finite, at the operator that has the most of them."""

    def __init__(self) -> None:
        self.entries = 0
        self.rows = 0
        self.of_rows = 0
        self.function = ""

    def see(self, node: Any, masks: Sequence[Mask]) -> None:
        """Count at a node whose derivative is about to run on cotangents with these masks."""
        mask = masks[0] if len(masks) == 1 else None
        if mask is None:
            return
        with torch.no_grad(), contextlib.suppress(Exception):  # a failure to count must not fail the pass
            ignored = ~mask
            met = [bad for bad in map(_not_finite, saved_tensors(node, not _HOOKS)) if bad is not None]
            if not met and type(node) in KINDS and can_be_read_again(node, not _HOOKS):
                # The derivative may compute the bad factor itself, as 1 / x does at 0: which zeros become NaN?
                results = run(node, torch.zeros(mask.shape, dtype=node._input_metadata[0].dtype, device=mask.device))
                met = [bad for bad in map(_not_finite, results) if bad is not None and bad.shape == mask.shape]
            for bad in met:
                self._see(function_of(node.name()), ignored, bad)

    def see_operator(self, function: str, operator: Callable[..., Any], args: Sequence[Any]) -> None:
        """Count at an operator of a compiled function's derivative, which is about to run on a cotangent."""
        masks = [mask for mask in map(mask_of, args) if mask is not None]
        if len(masks) != 1:
            return
        with torch.no_grad(), contextlib.suppress(Exception):
            met = [bad for arg in args if (bad := _not_finite(unwrap(arg))) is not None]
            if not met:
                result = operator(*(torch.zeros_like(arg.value) if type(arg) is Cotangent else arg for arg in args))
                met = [bad for bad in [_not_finite(result)] if bad is not None]
            for bad in met:
                self._see(function, ~masks[0], bad)

    def _see(self, function: str, ignored: Tensor, bad: Tensor) -> None:
        """Keep the counts of this operator if it has the most such elements so far."""
        if bad.shape == ignored.shape:
            both = bad & ignored
        elif bad.dim() and ignored.dim() and bad.size(0) == ignored.size(0):  # a layer's input: compare whole rows
            rows = ignored.flatten(1).all(1) if ignored.dim() > 1 else ignored
            both = bad & rows.view(-1, *[1] * (bad.dim() - 1))
        else:
            return
        entries = int(both.sum())
        if entries > self.entries:
            rows = both.flatten(1).any(1) if both.dim() > 1 else both
            self.entries, self.rows, self.function = entries, int(rows.sum()), function
            self.of_rows = rows.numel()

    def end(self) -> None:
        """Add the counts of this pass to all active blocks."""
        if not self.entries:
            return
        with _LOCK:
            for counted in _COUNTS:
                counted.kept_clean += 1
                counted.entries += self.entries
                counted.rows += self.rows
                counted.of_rows += self.of_rows
                counted.first = counted.first or counted.passes
                counted.last = counted.passes
                counted.functions[self.function] += self.entries


def _not_finite(tensor: Any) -> Tensor | None:
    """A mask of the elements that are not finite. None if all are finite, or if they are not floating-point numbers."""
    tensor = values_of(tensor)
    if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    bad = ~torch.isfinite(tensor)
    return bad if bool(bad.any()) else None


def _th(number: int) -> str:
    """A number as an ordinal.

    >>> _th(1), _th(12), _th(23)
    ('1st', '12th', '23rd')
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
