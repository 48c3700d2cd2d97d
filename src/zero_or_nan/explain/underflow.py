"""Whether a 0 is what an exponential underflowed to. `exp` is never 0, so another number in place of the 0 is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor

from ..functions.graph import function_of
from .nodes import carried_by, node_of, saved_by
from .tensors import any_of, numbers_of

UNDERFLOWED = ", after an exp that underflowed to 0"
"""What is added to the text of a computation."""

_MOST_NODES = 200
_EXPONENTIALS = frozenset({"Exp", "Exp2"})
_SUMS = frozenset(
    """
Sum Mean Add Mul Div Mm Mv Bmm Dot Expand Unsqueeze Squeeze Select Slice Index Gather View UnsafeView ReshapeAlias T
Transpose Permute Clone ToCopy Alias Diagonal
""".split()
)
"""Functions whose result is 0 if the elements of their operand are."""


def after_underflow(tensor: Tensor) -> bool:
    """Whether a tensor is a sum of exponentials of which some gave 0, and not because of an infinity.

    An infinity is a way to leave an element out: exp(-inf) is 0 without an underflow.
    """
    found = [node for node in _before([node_of(tensor)], _SUMS) if _gave_zero(node)]
    return bool(found) and not any(map(carried_by, _before(found)))


def _before(nodes: Iterable[Any], through: Collection[str] | None = None) -> list[Any]:
    """These nodes and those that they come from, the nearest first: through some functions, or through all."""
    found = [node for node in nodes if node is not None]
    for node in found:  # the list grows
        if through is None or function_of(node.name()) in through:
            new = [ahead for ahead, _ in node.next_functions if ahead is not None and ahead not in found]
            found += dict.fromkeys(new[: _MOST_NODES - len(found)])
    return found


def _gave_zero(node: Any) -> bool:
    if function_of(node.name()) not in _EXPONENTIALS:
        return False
    return any(here is not None and any_of(here == 0) for here in map(numbers_of, saved_by(node)))
