"""The steps of a pass. A step is the run of one node's derivative.

- `step`: PyTorch's own derivatives, on cotangents.
- `transferred`: derivatives that plain PyTorch runs. `custom_vjp`: those whose results a second formula repairs.
- `foreign`: derivatives that are not PyTorch's own code.
- `recomputed`: checkpoints. `sliced`: writes into a slice.

`plan` chooses the step by the type of the node.
"""

from .custom_vjp import CustomVJP
from .foreign import Opaque, Traced
from .recomputed import CHECKPOINT, Recomputed
from .sliced import Sliced
from .step import Count, Owner, Results, Step
from .transferred import Linear, OverNothing, Transferred, is_over_nothing

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
