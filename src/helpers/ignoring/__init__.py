"""The right gradient from unmodified forward code: `backward` and `grad` that skip what the loss ignored.

The `gradient` argument of backward is the cotangent that every node multiplies. Here it is a tensor that knows which of
its entries the loss ignored, and every step of backward hands that knowledge on: ignored times anything is ignored, a
sum skips it, and a zero that was computed is still a number.

- `passes`: the two functions, with PyTorch's own arguments.
- `harmless`: whether plain backward will do.
- `cotangent`: the tensor that knows, and the dispatcher that finds an operator's rule.
- `rules`: one rule per operator.
- `foreign`: compiled regions and functions that are not PyTorch's.
"""

from . import rules  # noqa: F401  (registers them)
from .cotangent import RULES, Cotangent, rule
from .passes import backward, grad

__all__ = ["RULES", "Cotangent", "backward", "grad", "rule"]
