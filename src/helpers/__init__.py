"""Helpers of *Zero or NaN?*: claims about gradients, checked where they stand.

- `Case`: a public case; makes claims, ends in a verdict.
- `MASKED`: the entry that `torch.masked` prints as `--`, for what a claim expects.
- `ignoring`: `backward` and `grad` that skip what the loss ignored, with the forward code as it is.
- `reference`: the gradient in float64 on the used entries alone.
- `ulp_distance`: how many representable numbers lie between two tensors' entries.
- `drawing`: a figure in the page's own colours.
- `what_counts`: which entries a function uses, by the definition and by `ignoring`.
- `control`: samples of a small computation, which a reader of the site can play with.
- `ClaimFailed`: what a claim that does not hold raises.

Needs torch (2.6 or newer), numpy and matplotlib, and nothing else.
"""

from . import ignoring
from .cases import Case
from .claims import Claim, ClaimFailed
from .compare import Tolerance, ulp_distance
from .controls import control
from .counting import what_counts
from .entries import MASKED, Entries, Kind
from .figures import drawing
from .quiet import quiet_prototype_warning, short_warnings
from .reference import reference
from .threads import THREADS, Thread
from .verdict import JUDGEMENTS, Verdict
from .ways import WAYS, Way

__all__ = [
    "Case",
    "Claim",
    "ClaimFailed",
    "Entries",
    "JUDGEMENTS",
    "Kind",
    "MASKED",
    "THREADS",
    "Thread",
    "Tolerance",
    "Verdict",
    "WAYS",
    "Way",
    "control",
    "drawing",
    "ignoring",
    "quiet_prototype_warning",
    "reference",
    "ulp_distance",
    "what_counts",
]

quiet_prototype_warning()
short_warnings()
