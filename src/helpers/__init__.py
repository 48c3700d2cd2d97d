"""Helpers of *Zero or NaN?*: claims about gradients, checked on the pages that make them.

- `Case`: a public case, which makes claims and ends with a verdict.
- `MASKED`: the element that `torch.masked` prints as `--`, for the expected value of a claim.
- `Since`: an expectation that a release of PyTorch changed.
- `reference`: the gradient in float64, computed from the used elements alone.
- `across`: a table of similar claims, with the recorded results of other releases.
- `ulp_distance`: how many ulps two tensors are apart, element by element.
- `drawing`: a figure in the page's own colours.
- `backward_figure`: the graph of a computation, and the cotangents that flow back through it, step by step.
- `what_counts`: which elements a function uses, by the definition and by `ignoring`.
- `atlas`: points at which a gradient is undefined, or a convention. Each is measured when it is shown.
- `node_names`: every node of PyTorch's graphs that has a derivative, with the function that makes it.
- `control`: samples of a small computation that a reader of the site can change.
- `ClaimFailed`: the exception that a claim raises if it does not hold.

The helpers need `zero_or_nan`, torch (2.6 or newer) with the networkx that it installs, numpy and matplotlib.
"""

from .across import across
from .advice import node_names
from .atlas import atlas, decisions
from .backward import backward_figure
from .cases import Case
from .claims import Claim, ClaimFailed
from .compare import Tolerance, ulp_distance
from .counting import what_counts
from .entries import MASKED, Entries, Kind
from .figures import drawing
from .grids import control
from .library import library_card
from .methods import METHODS, Method
from .reference import reference
from .releases import Since
from .threads import THREADS, Thread
from .verdict import JUDGEMENTS, Verdict

__all__ = [
    "Case",
    "Claim",
    "ClaimFailed",
    "Entries",
    "JUDGEMENTS",
    "Kind",
    "MASKED",
    "METHODS",
    "Method",
    "Since",
    "THREADS",
    "Thread",
    "Tolerance",
    "Verdict",
    "across",
    "atlas",
    "backward_figure",
    "control",
    "decisions",
    "drawing",
    "library_card",
    "node_names",
    "reference",
    "ulp_distance",
    "what_counts",
]
