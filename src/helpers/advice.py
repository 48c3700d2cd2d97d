"""The nodes that people meet in messages: whether each can return NaN, why, and what to write instead.

`zero_or_nan` knows why, from the numbers that a function takes and gives, and the atlas has the points and the code.
`ADVICE` holds only what these two can't say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zero_or_nan.functions.conditions import ALWAYS, FINITE, MODERATE
from zero_or_nan.functions.graph import function_of
from zero_or_nan.functions.numerics import numerics_of
from zero_or_nan.functions.record import FUNCTIONS, UNKNOWN

from . import show
from .atlas import Point, points_by_node
from .points import POINTS

if TYPE_CHECKING:
    from .nodes import Node


class Advice(NamedTuple):
    """What to say of nodes with one fix.

    Attributes:
        fix: what to do. By default, write what the atlas shows for the node's first point.
        page: the page about it, with an anchor. By default, the page that `explain` names for the function.
        why: whether the nodes can return NaN, and why. By default, what the numerics of the function say.
    """

    fix: str = ""
    page: str = ""
    why: str = ""


ADVICE: dict[str, Advice] = {
    "Acos Acosh Asin": Advice(page="atlas#angles"),
    "Log Sqrt": Advice(),
    "Log2 Log10": Advice("Keep 0 out, with `x.clamp(min=1e-12)` before the logarithm."),
    "Hypot": Advice(page="atlas#norms-and-distances", why="Yes: at (0, 0) it divides 0 by 0."),
    "SpecialEntr Xlogy": Advice(
        page="atlas#logarithms-entropy-and-losses",
        why="Yes: at 0 the slope is infinite, and 0 times this slope is NaN.",
    ),
    "Logaddexp": Advice(
        page="atlas#logarithms-entropy-and-losses", why="Yes: if both arguments are −inf, it computes −inf − (−inf)."
    ),
    "Logsumexp Softmax LogSoftmax": Advice(
        "Give each row an element that is not −inf, and drop the row's result afterwards.", "attention#what-to-do"
    ),
    "LinalgEigh LinalgSvd": Advice(
        "If the loss needs only the values, use `torch.linalg.eigvalsh` or `torch.linalg.svdvals`.",
        "undefined#eigenvectors-of-equal-eigenvalues",
        "Yes: it divides by the difference of two eigenvalues or singular values, which is 0 if they are equal.",
    ),
    "Std Var": Advice(
        page="undefined#std-of-one-element",
        why="Yes: for one element, it divides by n − 1 = 0. The root of a variance of 0 sends it an infinity.",
    ),
    "Pow": Advice(
        "Filter before you square: `(x[ok] - target[ok]) ** 2`. For a root, keep 0 out of it.",
        "nansum-nanmean#what-to-do",
        "Yes: if the base is NaN, as in `(x - target) ** 2` with a NaN target. At 0, a root has no slope.",
    ),
    "PowBackward1": Advice(
        "If only the size matters, write `x.abs() ** p`.",
        "returned-nan-values#at-a-glance",
        "Yes: output 1 needs the logarithm of the base, which is NaN below 0.",
    ),
    "Div Reciprocal": Advice("Replace the divisor before you divide: `x / torch.where(ok, d, 1)`."),
    "Exp": Advice("Replace the argument before `exp`: `torch.where(ok, x, 0).exp()`."),
    "Mul": Advice("Find the factor that is NaN or inf, and filter it before the product.", "nansum-nanmean#what-to-do"),
    "Addmm Bmm Convolution Mm": Advice(
        "Filter NaN from inputs and targets before the layer. If activations are inf, find where they grow.",
        "slicing-nan#what-to-do",
    ),
    "MseLoss SmoothL1Loss": Advice(
        "Filter the targets before the loss: `loss(x[ok], target[ok])`.",
        "nansum-nanmean#what-to-do",
        "Yes: if an input or a target is NaN, or if both are the same infinity.",
    ),
    "BinaryCrossEntropyWithLogits": Advice(
        "Look for the first NaN of the forward pass. It is in the model, or in the data.",
        "losses-and-geometry#at-a-glance",
        "Yes: if a logit, a target or a weight is NaN.",
    ),
    "NllLoss": Advice(
        'Write `reduction="sum"`, and divide by the number of targets, `count.clamp_min(1)`.',
        "undefined#cross-entropy-with-every-target-ignored",
        "Yes: if every target has the weight 0, the mean divides by 0. If every target is ignored, only the loss is NaN.",
    ),
    "CtcLoss CudnnCtcLoss": Advice(
        "Write `zero_infinity=True`, or leave such samples out.",
        "losses-and-geometry#ctc-a-target-that-does-not-fit",
        "Yes: if a target is too long for its input, the loss is infinite.",
    ),
    "Abs Cos Sigmoid Tanh": Advice(
        "Find the first NaN or inf: `explain` names its line.", "returned-nan-values#find-the-cause"
    ),
    "NormBackward1": Advice(
        "Choose a smaller `p`.",
        "atlas#norms-and-distances",
        "Yes: a power of `p` overflows if `p` or an element is large. At 0 with `p=2`, its gradient is 0.",
    ),
    "Add AsStrided NanToNum Permute Sub Where": Advice(
        "Find the first NaN or inf: `explain` names its line.", "returned-nan-values#find-the-cause"
    ),
    "CudnnRnn MkldnnRnnLayer": Advice(
        "Check padding and inputs for NaN. Then look for activations that grow.", "slicing-nan#what-to-do"
    ),
    "CudnnBatchNorm": Advice("Check the batch for NaN and for inf before this layer.", "slicing-nan#what-to-do"),
    "ScaledDotProductCudnnAttention": Advice(
        "Add a float mask of −inf in place of a bool mask, or call `torch.backends.cuda.enable_cudnn_sdp(False)`.",
        "only-on-a-gpu#at-a-glance",
        "Yes, on a GPU: for a row without a key under a bool mask, also if the loss does not use this row.",
    ),
    "ScaledDotProductEfficientAttention ScaledDotProductFlashAttention": Advice(
        "Run the failing batch under `sdpa_kernel(SDPBackend.MATH)`. If it is finite, the kernel is the cause.",
        "only-on-a-gpu#is-it-the-kernel",
    ),
}
"""The advice for one or more nodes, by their names. The end `Backward0` is left out."""

BY_NODE = {
    name if "Backward" in name else f"{name}Backward0": ADVICE[names]
    for name, names in sorted((name, names) for names in ADVICE for name in names.split())
}
"""The advice, by the whole name of each node."""


def answers(nodes: Mapping[str, Node]) -> dict[str, str]:
    """The answers for each node that people meet and that this PyTorch has, as HTML, in alphabetical order."""
    points = points_by_node([point for group in POINTS.values() for point in group])
    return {name: _html(nodes[name], advice, points.get(name, ())) for name, advice in BY_NODE.items() if name in nodes}


def why(node: Node) -> str:
    """Whether a node can return NaN, and why, from what is known of its function.

    Raises:
        ValueError: if neither the numerics nor the record of the function say it.

    >>> from helpers.nodes import nodes
    >>> why(nodes()["AcosBackward0"])
    'Yes: outside of −1 to 1 the value is NaN, and at −1 and 1 the slope is infinite.'
    """
    known, record = numerics_of(node.public), FUNCTIONS.get(function_of(node.name), UNKNOWN)
    low, high = known.domain
    if math.isfinite(low):
        outside = f"outside of {low:g} to {high:g}" if math.isfinite(high) else f"below {low:g}"
        ends = " and ".join(f"{end:g}" for end in known.steep_at)
        return f"Yes: {outside} the value is NaN, and at {ends} the slope is infinite.".replace("-", "−")
    if known.pole:
        ones = [1.0] * len(node.inputs)
        zeros = [name for at, name in enumerate(node.inputs) if known.pole(*ones[:at], 0.0, *ones[at + 1 :])]
        return f"Yes: if `{zeros[0]}` is 0, neither the value nor the slope is finite."
    if known.ignores_infinity:
        return "Yes: if all elements of a row are −inf."
    if known.products or record.safe_if == FINITE:
        return "Yes: it multiplies by a number of the forward pass, and 0 times NaN or inf is NaN."
    if record.safe_if == MODERATE:
        return "Yes: if a number of the forward pass is NaN or inf, or so large that the derivative overflows."
    if record.safe_if == ALWAYS:
        return "Not by itself: only if NaN or inf arrives."
    raise ValueError(
        f"nothing is known of the numbers of {node.name}; write why it can be NaN in helpers.advice.ADVICE"
    )


def _html(node: Node, advice: Advice, points: Sequence[Point]) -> str:
    known = numerics_of(node.public)
    fix = advice.fix or f"Write `{points[0].instead}`."
    page = advice.page or known.points or known.section
    links = [(f"atlas#{point.anchor}", point.name) for point in points]
    if not (points and page.startswith("atlas")):
        links.insert(0, (page, page.replace("-", " ").replace("#", ": ")))
    shown = " · ".join(show.link(place, name) for place, name in links)
    return f"<p>{show.with_code(advice.why or why(node))}</p><p><b>Fix:</b> {show.with_code(fix)} See {shown}</p>"
