"""The right gradient from unmodified forward code: `backward` and `grad` that skip what the loss ignored.

The `gradient` argument of backward is the cotangent that every node multiplies. Here it is a tensor that knows which of
its entries the loss ignored, and every step of backward hands that knowledge on: ignored times anything is ignored, a
sum skips it, and a zero that was computed is still a number.

In the order of the flow:

- `passes`: the two functions, with PyTorch's own arguments.
- `looks`: whether plain backward will do.
- `careful`: one pass that knows: where masks arrive, and where they go.
- `steps`: what happens at one node; `checkpoints`: a node that is a pass of its own.
- `cotangent`, `masks`: the tensor that a derivative gets.
- `dispatch`, `in_place`: an operator that the derivative calls finds its rule.
- `hooks`, `threads`, `lifetimes`: what else a pass touches.
- `registry`: a record for each forward function, a rule for each operator; they stand in `functions` and `rules`.
"""

from . import dispatch, functions, rules  # noqa: F401  (they register themselves)
from .cotangent import Cotangent
from .passes import backward, grad
from .registry import FUNCTIONS, RULES, Function, NotFollowed, derivative, function, rule

__all__ = [
    "FUNCTIONS",
    "RULES",
    "Cotangent",
    "Function",
    "NotFollowed",
    "backward",
    "derivative",
    "function",
    "grad",
    "rule",
]
