"""A sample of PyTorch's own database of operators, from each room of `ignoring`'s rules."""

from __future__ import annotations

import random
from typing import Any

import torch

from .. import ignoring
from .poisoned import Tally, database, judge, name_of, poisoned

SAMPLES = 40
"""Samples of each operator that are looked at, at most."""
ENOUGH = 8
"""Contaminated samples after which no other is looked at."""
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
"""Operators by their names in the database, none of which a poisoned number can crash."""


def chosen() -> dict[str, Any]:
    """The operators by name; None for one that this release does not have.

    Raises:
        ImportError: where a package is missing that PyTorch's tests need.
    """
    found = {name_of(op): op for op in database()}
    return {name: found.get(name) for name in OPERATORS}


def tally(op: Any, device: torch.device) -> Tally:
    """What became of an operator's poisoned samples, which are the same in each run."""
    counts = Tally(name_of(op))
    random.seed(0)
    torch.manual_seed(0)
    for case in poisoned(op, SAMPLES, counts, str(device)):
        judge(case, ignoring.grad, counts)
        if counts.contaminated == ENOUGH:
            break
    return counts
