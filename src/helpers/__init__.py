"""Helpers of *Zero or NaN?*: claims about gradients, checked on the pages that make them.

The page *API of the helpers* says what each name means: `Case` and its claims and verdicts; `reference`, by which they
are judged; the tables and figures of the pages; and the methods and threads that the pages name.

The helpers need `zero_or_nan`, torch (2.6 or newer) with the networkx that it installs, numpy and matplotlib.
"""

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
