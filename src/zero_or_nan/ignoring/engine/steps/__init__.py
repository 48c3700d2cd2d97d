"""The steps of a pass. A step is the run of one node's derivative.

There is a file for each method of running a derivative. `kinds` chooses the method by the type of the node.
"""

from .foreign import Opaque, Traced
from .recomputed import CHECKPOINT, Recomputed
from .sliced import Sliced
from .step import Count, Owner, Results, Step
from .transferred import CustomVJP, Linear, OverNothing, Transferred, is_over_nothing

__all__ = [
    "CHECKPOINT",
    "Count",
    "CustomVJP",
    "Linear",
    "Opaque",
    "OverNothing",
    "Owner",
    "Recomputed",
    "Results",
    "Sliced",
    "Step",
    "Traced",
    "Transferred",
    "is_over_nothing",
]
