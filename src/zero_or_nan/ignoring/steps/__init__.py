"""The steps of a pass. A step is the run of one node's derivative.

There is a file for each method of running a derivative. `kinds` chooses the method by the type of the node.
"""

from .boundary import DTensorBoundary
from .compiled import Compiled
from .custom_vjp import CustomVJP
from .linear import Linear
from .opaque import Opaque
from .over_nothing import OverNothing, is_over_nothing
from .recomputed import CHECKPOINT, Recomputed
from .sliced import Sliced
from .step import Owner, Results, Step
from .taped import Taped
from .traced import Traced
from .transferred import Transferred

__all__ = [
    "CHECKPOINT",
    "Compiled",
    "CustomVJP",
    "DTensorBoundary",
    "Linear",
    "Opaque",
    "OverNothing",
    "Owner",
    "Recomputed",
    "Results",
    "Sliced",
    "Step",
    "Taped",
    "Traced",
    "Transferred",
    "is_over_nothing",
]
