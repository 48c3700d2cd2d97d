"""What happens at one node: its derivative runs once, and that run is a step of the pass.

There is a file for each way in which a derivative is run. `kinds` chooses the way, by the type of the node.
"""

from .boundary import DTensorBoundary
from .custom_vjp import CustomVJP
from .linear import Linear
from .opaque import Opaque
from .recomputed import CHECKPOINT, Recomputed
from .sliced import Sliced
from .step import Owner, Results, Step
from .traced import Traced

__all__ = [
    "CHECKPOINT",
    "CustomVJP",
    "DTensorBoundary",
    "Linear",
    "Opaque",
    "Owner",
    "Recomputed",
    "Results",
    "Sliced",
    "Step",
    "Traced",
]
