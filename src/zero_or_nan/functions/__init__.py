"""What is known of PyTorch's functions: which of them select, and what their derivatives do to ignored elements.

- `families`: the numerics, records, transfers and rules, one family of functions in each file.
- `formulas`: formulas of several functions that lose a number on the way, and what to write instead.
- `numerics`: what can be known of the numbers that a function takes and gives. `explain` reads it.
- `record`: what a record and a transfer can say. `conditions`: which saved tensors are safe.
- `registry`: registers records, transfers, rules and derivatives. `authoring` checks those that users write.
- `graph`: the nodes of a graph, and the forward function behind each.
- `fills`: finds the zeros of derivative formulas that select nothing.
"""

import warnings

from . import formulas  # isort: skip  # its rewrites come before those of a single function
from . import families
from .registry import MISSING

if MISSING:
    warnings.warn(
        f"zero_or_nan does not know all names of this PyTorch: {', '.join(MISSING)}. PyTorch may have renamed them. A "
        "gradient that goes through such a function may be plain PyTorch's. To see what changed, run "
        "python -m zero_or_nan.selfcheck",
        stacklevel=2,
    )

__all__ = ["families", "formulas"]
