"""Tests every case and a sample of PyTorch's operators, with plain PyTorch and with `ignoring`: a word for each."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ignoring
from .cases import CASES, CheckedCase
from .poisoned import Gradients, Tally, database, judge, name_of, poisoned, same_bits
from .words import FIXED, WORDS, Words, word

SAMPLES = 40
"""The largest number of samples of an operator that are tested."""
ENOUGH = 8
"""The number of contaminated samples after which an operator's test ends."""
OPERATORS = """
    exp sqrt div.no_rounding_mode atan2 pow xlogy nn.functional.gelu
    mm bmm nn.functional.linear nn.functional.conv2d nn.functional.bilinear
    softmax logsumexp var prod nn.functional.normalize
    cumprod logcumsumexp
    cholesky_solve linalg.solve_triangular linalg.solve
    nn.functional.layer_norm nn.functional.batch_norm
    nn.functional.embedding_bag cdist scatter_reduce.amax index_reduce.amax
    kron cross trapezoid nn.functional.local_response_norm
""".split()
"""Names in PyTorch's database of operators, for each kind of rule. A poisoned number can't crash any of them."""

NO_SAMPLE = "no sample"
NOT_FOLLOWED = "not followed"
"""The word for `ignoring` if it warns that it could not go on, and so from there on returns PyTorch's gradient."""


@dataclass(frozen=True)
class Row:
    """The name of a case or an operator, the words for plain PyTorch's gradient and for ours, and the recorded words.

    `tally` has the counts of an operator.
    """

    name: str
    plain: str
    ignoring: str
    recorded: Words = FIXED
    case: CheckedCase | None = None
    tally: Tally | None = None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """While entered, no warnings are shown, because the words replace them. One thread is faster for small tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


def ask_case(case: CheckedCase, device: torch.device) -> Row:
    """The row of a case. An exception becomes a word, so that the other cases still run."""
    plain_word, plain = _gradients(torch.autograd.grad, case, device)
    our_word, ours = _gradients(ignoring.grad, case, device)
    if our_word in ("right", "rounded") and not _keeps_bits(ours, plain):
        # If plain PyTorch adds in another order each time, there are no bits to keep.
        _, again = _gradients(torch.autograd.grad, case, device)
        our_word = "other bits" if _keeps_bits(again, plain) else our_word
    return Row(case.name, plain_word, our_word, case.recorded, case)


def ask_operator(name: str, op: Any, device: torch.device) -> Row:
    """The row of an operator of the database. `op` is None if this release has no operator of this name."""
    try:
        tally = Tally(name) if op is None else tally_of(op, device)
    except Exception as error:
        # Another device may lack the operator, or the float64 that its samples need. Then it can't be tested.
        lacks = device.type != "cpu" and isinstance(error, (NotImplementedError, TypeError))
        told = NO_SAMPLE if lacks else f"raises {type(error).__name__}"
        return Row(name, told, told, tally=Tally(name))
    if not tally.samples:
        return Row(name, NO_SAMPLE, NO_SAMPLE, tally=tally)
    plain = "contaminated" if tally.contaminated else "right"
    if tally.broken:
        ours = "wrong"
    elif tally.fixed < tally.contaminated:
        ours = NOT_FOLLOWED if tally.without_rule else "contaminated"
    else:
        ours = "other bits" if tally.other_bits else "right"
    return Row(name, plain, ours, tally=tally)


def tally_of(op: Any, device: torch.device) -> Tally:
    """The tally of an operator's poisoned samples, which are the same in each run."""
    counts = Tally(name_of(op))
    random.seed(0)
    torch.manual_seed(0)
    for case in poisoned(op, SAMPLES, counts, str(device)):
        judge(case, ignoring.grad, counts)
        if counts.contaminated == ENOUGH:
            break
    return counts


def ask_all(device: torch.device, tell: Callable[[Row], None]) -> tuple[list[Row], str | None]:
    """All rows, and the reason if there are no operators, else None. `tell` gets each row as soon as it is ready."""
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        tell(row)

    with quietly():
        for case in CASES:  # before the database is imported: PyTorch's tests change settings of the process
            add(ask_case(case, device))
        try:
            found = {name_of(op): op for op in database()}
        except ModuleNotFoundError as error:
            return rows, f"PyTorch's database of operators needs {error.name}, which is not installed"
        except Exception as error:
            return rows, f"PyTorch's database of operators can't be imported ({type(error).__name__})"
        for name in OPERATORS:
            add(ask_operator(name, found.get(name), device))
    return rows, None


def _gradients(method: Gradients, case: CheckedCase, device: torch.device) -> tuple[str, list[Tensor | None]]:
    """The word for a case's gradients, which is that of the worst, and the gradients."""
    try:
        setting = case.set_up(device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gradients = list(method(setting.outputs, list(setting.leaves), setting.vector, allow_unused=True))
        words = [word(g, wanted, case.ulps) for g, wanted in zip(gradients, setting.wanted, strict=True)]
    except Exception as error:
        return f"raises {type(error).__name__}", []
    found = max(words, key=WORDS.index)
    if found == "contaminated" and any("could not follow" in str(warning.message) for warning in caught):
        found = NOT_FOLLOWED
    return found, gradients


def _keeps_bits(gradients: list[Tensor | None], plain: list[Tensor | None]) -> bool:
    pairs = [(g, p) for g, p in zip(gradients, plain, strict=False) if g is not None and p is not None]
    return same_bits([g for g, _ in pairs], [p for _, p in pairs])
