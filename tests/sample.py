"""Which of many alike cases `make test` runs. `make test-whole` runs all of them."""

import os
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")

WHOLE = bool(os.environ.get("WHOLE_TESTS"))
"""Whether nothing is left out."""


def sample(cases: Iterable[Item], every: int, first: int = 0) -> list[Item]:
    """Every so many of the cases, from the first one that is named; all, in `make test-whole`."""
    assert 0 <= first < every
    return list(cases) if WHOLE else list(cases)[first::every]


def examples(count: int) -> int:
    """How many random examples a property is tried with: an eighth of `count`; all in `make test-whole`."""
    return count if WHOLE else count // 8
