"""The right gradient from unmodified forward code: `backward` and `grad` that skip what the loss ignored.

The `gradient` argument of backward is the cotangent that every node multiplies. Here it is a tensor that knows which of
its elements the loss ignored, and every step of backward hands that knowledge on: ignored times anything is ignored, a
sum skips it, and a zero that was computed is still a number.

What users of the library import:

- `backward`, `grad`: in place of `torch.autograd.backward` and `torch.autograd.grad`.
- `counting`: how much of what was ignored was not finite.
- `function`, `rule`, `derivative`: say once what an operator or an `autograd.Function` of your own does to ignored
  elements. A rule is written with `Cotangent`, `unwrap`, `mask_of`, `zero_ignored`, `prefer_exact` and `NotFollowed`.
  `Function` and its conditions (`ALWAYS`, `FINITE`, `MODERATE`, `AWAY_FROM_ZERO`, `NEVER`) are what can be said of a
  forward function.

How it works, in the order of the flow:

- `passes`: the two functions, with PyTorch's own arguments.
- `precheck`: whether plain backward is safe, by the `conditions` on what a graph saved.
- `plan`: what to do at each node, by what is known of its type: `kinds`.
- `masked_pass`: one pass that knows the masks: where they arrive, and where they go.
- `steps`: what happens at one node, a file for each way in which a derivative is run.
- `cotangent`, `masks`: the tensor that a derivative gets; `distributed`: where it is spread over several processes.
- `dispatch`, `in_place`: an operator that the derivative calls finds its rule.
- `hooks`, `threads`, `lifetimes`, `compiling`, `watching`, `vmapped`: what else a pass touches.
- `jagged`, `sparse`: tensors whose elements lie in memory in another way.
- `registry`: a record and perhaps a transfer for each forward function, a rule for each operator; `operators` has them,
  one family of functions in each file. `authoring` checks what users add; `failures`: what a rule raises.
"""

from . import dispatch, operators  # noqa: F401  (they register themselves)
from .conditions import ALWAYS, AWAY_FROM_ZERO, FINITE, MODERATE, NEVER
from .cotangent import Cotangent, mask_of, prefer_exact, unwrap, zero_ignored
from .counts import Counted, counting
from .failures import NotFollowed
from .passes import backward, grad
from .registry import FUNCTIONS, RULES, Function, derivative, function, rule

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
    "function",
    "grad",
    "mask_of",
    "prefer_exact",
    "unwrap",
    "rule",
    "zero_ignored",
]
