"""What a tensor of the example is, and stays: labels stay labels, and a row of probabilities sums to 1.

A search that ignores this blames losses for inputs that they never get: a target of -100 where there is none.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal[
    "flags", "labels", "choices", "counts", "distributions", "log-distributions", "directions", "fractions",
    "positives", "numbers", "fixed",
]  # fmt: skip
"""What the numbers of a tensor are:

- flags: bools. labels: integers, of the range that the example has. choices: at most two different floats, 0 and 1 or
  -1 and 1. counts: whole numbers from 0 on.
- distributions: rows that are at least 0, and sum to 1. log-distributions: their logarithms. directions: rows of
  length 1.
- fractions: between 0 and 1. positives: larger than 0. numbers: all other floats.
- fixed: what is not changed, such as complex and empty tensors.
"""

ROWS = ("distributions", "log-distributions", "directions")
"""The kinds whose rows change as a whole."""

_ROUNDED = 2e-3
"""How far the sum or the length of a row may be from 1."""


def kind_of(example: Tensor) -> Kind:
    """What a tensor of the example is."""
    if example.dtype is torch.bool:
        return "flags" if example.numel() else "fixed"
    if not example.numel() or example.layout is not torch.strided or example.is_complex():
        return "fixed"
    if not example.is_floating_point():
        return "labels"
    values = example.detach().double()
    if not bool(values.isfinite().all()):
        return "fixed"
    has_rows = values.dim() > 0 and values.shape[-1] > 1
    is_binary = values.dim() > 0 and bool(((values == 0) | (values.abs() == 1)).all())
    if has_rows and bool((values >= 0).all()) and _is_one(values.sum(-1)) and (values.dim() > 1 or not is_binary):
        return "distributions"
    if is_binary and (bool((values >= 0).all()) or bool((values != 0).all())):
        return "choices"
    if has_rows and bool((values <= 0).all()) and _is_one(values.exp().sum(-1)):
        return "log-distributions"
    if has_rows and values.dim() > 1 and _is_one(values.norm(dim=-1)):
        return "directions"
    if bool((values >= 0).all()):
        if bool((values == values.round()).all()):
            return "counts"
        return "fractions" if bool((values <= 1).all()) else "positives"
    return "numbers"


def _is_one(numbers: Tensor) -> bool:
    return bool(((numbers - 1).abs() < _ROUNDED).all())


def is_within(kind: Kind, example: Tensor, found: Tensor) -> bool:
    """Whether numbers are in the range of the example: at most ten times as large; numbers up to 1 may be bounded."""
    if kind not in ("numbers", "positives", "counts"):
        return True
    largest = float(example.detach().abs().max())
    return float(found.detach().abs().max()) <= max(1.0, largest if largest <= 1 else 10 * largest) * 1.001
