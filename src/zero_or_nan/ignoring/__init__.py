"""The right gradient from unmodified forward code: `backward` and `grad` that skip what the loss ignored.

The `gradient` argument of backward is the cotangent that every node multiplies. Here it is a tensor that knows which of
its elements the loss ignored, and every step of backward passes that knowledge on: ignored times anything is ignored, a
sum skips ignored terms, and a zero that was computed is still a number.

What users of the library import:

- `backward`, `grad`: in place of `torch.autograd.backward` and `torch.autograd.grad`.
- `func`: `grad`, `grad_and_value`, `vjp` and `jacrev` in place of those of `torch.func`.
- `counting`: counts the ignored elements that are NaN or infinite.
- `follow_compiled`: lets inductor keep what is needed to follow a compiled region.
- `function`, `rule`, `derivative`: describe what an operator or an `autograd.Function` of your own does to ignored
  elements. A rule is written with `Cotangent`, `unwrap`, `mask_of`, `zero_ignored`, `prefer_exact` and `NotFollowed`.
  `Function` and its conditions (`ALWAYS`, `FINITE`, `MODERATE`, `AWAY_FROM_ZERO`, `NEVER`) describe a forward function.

How it works, in the order of the flow:

- `passes`: the two functions, with PyTorch's own arguments.
- `fills`: finds the zeros of derivative formulas that select nothing, for gradients of gradients.
- `precheck`: decides whether plain backward is safe: are the `conditions` met by the tensors that the graph saved?
- `plan`: decides what to do at each node, by the type of the node (`kinds`).
- `masked_pass`: one pass that carries masks from node to node.
- `steps`: runs the derivative of one node. There is a file for each method of running it.
- `cotangent`, `masks`: the tensor that a derivative gets.
- `tape`: follows the operators that a user's own derivative calls on plain tensors.
- `dispatch`, `in_place`: find and run the rule of an operator that the derivative calls.
- `compiled`: the backward graph of a compiled region. `meanings`: what its zeros mean.
- `hooks`, `threads`, `lifetimes`, `compiling`, `watching`, `vmapped`: the parts of PyTorch that a pass touches.
- `forms`: where a tensor has its numbers. `jagged`, `distributed`: two such forms. `sparse`: what sparse tensors store.
- `registry`: a record and perhaps a transfer for each forward function, and a rule for each operator. `operators` has
  them, one family of functions in each file. `authoring` checks what users add. `failures`: what a rule raises.
"""

from .. import functions  # noqa: F401  (its rules register themselves)
from ..functions.conditions import ALWAYS, AWAY_FROM_ZERO, FINITE, MODERATE, NEVER
from ..functions.record import FUNCTIONS, RULES, Function
from ..functions.registry import derivative, function, rule
from ..masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, unwrap, zero_ignored
from . import extras, func  # noqa: F401  (extras register themselves)
from .engine import dispatch  # noqa: F401  (registers itself)
from .engine.passes import backward, grad
from .extras.compiled.meanings import follow_compiled
from .extras.counts import Counted, counting

__all__ = [
    "ALWAYS",
    "AWAY_FROM_ZERO",
    "FINITE",
    "FUNCTIONS",
    "MODERATE",
    "NEVER",
    "RULES",
    "Cotangent",
    "Counted",
    "Function",
    "NotFollowed",
    "backward",
    "counting",
    "derivative",
    "follow_compiled",
    "func",
    "function",
    "grad",
    "mask_of",
    "prefer_exact",
    "unwrap",
    "rule",
    "zero_ignored",
]
