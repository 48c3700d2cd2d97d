"""Helpers of *Zero or NaN?*: claims about gradients, checked where they stand.

- `Case`: a public case; makes claims, ends in a verdict.
- `MASKED`: the element that `torch.masked` prints as `--`, for what a claim expects.
- `Since`: an expectation that a release of PyTorch changed.
- `reference`: the gradient in float64 on the used elements alone.
- `across`: a table of claims that are alike, with what is recorded of other releases.
- `ulp_distance`: how many ulps lead from each element of a tensor to that of another.
- `drawing`: a figure in the page's own colours.
- `backward_figure`: the graph of a computation, and the cotangents that flow back through it, step by step.
- `what_counts`: which elements a function uses, by the definition and by `ignoring`.
- `atlas`: points where a gradient is undefined, or a convention, each measured when it is shown.
- `node_names`: every node of PyTorch's graphs that has a derivative, with the function that makes it.
- `control`: samples of a small computation, which a reader of the site can play with.
- `ClaimFailed`: what a claim that does not hold raises.

Needs `zero_or_nan`, torch (2.6 or newer) with the networkx that it brings, numpy and matplotlib, and nothing else.
"""

from .across import across
from .atlas import atlas, decisions, node_index
from .backward import backward_figure
from .cases import Case
from .claims import Claim, ClaimFailed
from .compare import Tolerance, ulp_distance
from .controls import control
from .counting import what_counts
from .entries import MASKED, Entries, Kind
from .figures import drawing
from .library import library_card
from .nodes import node_names
from .reference import reference
from .releases import Since
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
    "Since",
    "THREADS",
    "Thread",
    "Tolerance",
    "Verdict",
    "WAYS",
    "Way",
    "across",
    "atlas",
    "backward_figure",
    "control",
    "decisions",
    "drawing",
    "library_card",
    "node_index",
    "node_names",
    "reference",
    "ulp_distance",
    "what_counts",
]
