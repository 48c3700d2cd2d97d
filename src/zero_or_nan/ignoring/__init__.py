"""The right gradient from unmodified forward code: `backward` and `grad` that skip what the loss ignored.

A pass of backward multiplies a cotangent at every node. Here each cotangent has a *mask*, which is True at each element
that counts, and every node passes that knowledge on: ignored times anything is ignored, a sum skips ignored terms, and
a zero that was computed is still a number.

What users of the library import:

- `backward`, `grad`: in place of `torch.autograd.backward` and `torch.autograd.grad`.
- `func`: `grad`, `grad_and_value`, `vjp` and `jacrev` in place of those of `torch.func`.
- `counting`: counts the ignored elements that are NaN or infinite.
- `follow_compiled`: lets inductor keep what is needed to follow a compiled region.
- `function`, `rule`, `derivative`: describe what an operator or an `autograd.Function` of your own does to ignored
  elements. A rule is written with `Cotangent`, `unwrap`, `mask_of`, `zero_ignored`, `prefer_exact` and `NotFollowed`.
  `Function` and its conditions (`ALWAYS`, `FINITE`, `MODERATE`, `AWAY_FROM_ZERO`, `NEVER`) describe a forward function.

What happens in `backward(torch.where(x < 50, x.exp(), 0).sum())`, with an x at which exp overflows:

1. `engine.passes` gets the nodes of the graph (`functions.graph`): those of sum, where and exp, and the leaf x.
2. `engine.precheck` looks at the tensors that the nodes saved. If plain backward is safe, it runs, and nothing else
   happens. Here it is not: exp saved an infinity, and 0 times infinity is NaN.
3. `engine.plan` decides what to do at each node, by the record of its function (`functions.record`). No mask can reach
   the node of sum, so the plan *skips* it, as it skips the leaf. The nodes of where and exp are *transferred*.
4. `engine.masked_pass` puts a hook on these two nodes (`engine.attach`), and PyTorch's engine runs on plain tensors.
5. PyTorch's derivative of where runs. The transfer of where (`functions.families.selections`) says which elements of
   its results count: those that the condition has chosen. The pass sends this mask on to the node of exp.
6. PyTorch's derivative of exp runs, and gives NaN. The transfer of exp (`functions.families.pointwise`) writes 0 over
   each NaN that does not count. The pass ends at the leaf, and `x.grad` is a plain tensor.

A node without a transfer, or whose results a transfer can't repair, is *interpreted*. Then `engine.steps` runs its
derivative on a `Cotangent` (`masks.cotangent`), which is a tensor with a mask. Each operator that the derivative calls
goes to `engine.dispatch`, which runs the operator's rule.

Four folders, each of which imports only from those before it. The first two are beside this one:

- `zero_or_nan.masks`: masks, and tensors that have one.
- `zero_or_nan.functions`: what is known of PyTorch's functions.
- `ignoring.engine`: one pass.
- `ignoring.extras`: what few programs need, such as compiled regions. Each extra registers itself.
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
