"""What to do about an origin: code to paste, and the page about it. One entry for a kind, or a kind and an operator."""

from __future__ import annotations

from typing import NamedTuple

PAGES = "https://zero-or-nan.github.io/zero-or-nan/chapters/"
FIND = "find-it-in-your-model"


class Remedy(NamedTuple):
    """Code with a comment that says why, and the page's name."""

    code: str
    page: str


_IGNORE = """\
from zero_or_nan import ignoring
ignoring.backward(loss)  # in place of loss.backward()"""

_IGNORE_GRAD = """\
# ignoring does not mend it here: keep the entry out of the function itself,
# with a harmless number where the loss does not look
safe = torch.where(used, x, torch.ones_like(x))
y = torch.where(used, f(safe), 0)"""

_CONTAMINATED_PAGES = {
    "exp": "where-over-exp",
    "div": "where-over-division",
    "reciprocal": "where-over-division",
    "linear": "slicing-nan",
    "matmul": "slicing-nan",
    "nansum": "nansum-nanmean",
    "nanmean": "nansum-nanmean",
    "log": "where-over-exp",
    "sqrt": "undefined",
    "pow": "undefined",
    "norm": "undefined",
    "acos": "undefined",
    "softmax": "undefined",
    "scaled_dot_product_attention": "undefined",
    "multi_head_attention_forward": "undefined",
    "sub": "slicing-nan",
}

REMEDIES: dict[tuple[str, str], Remedy] = {
    ("undefined", ""): Remedy(
        "# the loss asks for a number that does not exist: keep away from this point,\n"
        "# or leave the entry out\n"
        "keep = torch.isfinite(y)\nloss = y[keep].mean()  # with ignoring.backward(loss)",
        "undefined",
    ),
    ("undefined", "log"): Remedy(
        "# of a probability: F.log_softmax(logits, dim=-1) or F.logsigmoid(logits)\n"
        "y = x.clamp_min(1e-8).log()  # else say how small is small enough",
        "undefined",
    ),
    ("undefined", "sqrt"): Remedy("y = (x + 1e-12).sqrt()  # the slope of sqrt at 0 is infinite", "undefined"),
    ("undefined", "norm"): Remedy("y = (x.square().sum(-1) + 1e-12).sqrt()  # no slope at 0", "undefined"),
    ("undefined", "pow"): Remedy("y = x.clamp_min(1e-8) ** p  # at 0 a power below 1 has no slope", "undefined"),
    ("undefined", "div"): Remedy(
        "y = a / torch.where(b == 0, 1, b)  # decide what a / 0 is to be\n"
        "y = total / count.clamp_min(1)  # where b is a count",
        "division-under-a-mask",
    ),
    ("undefined", "std"): Remedy("y = x.std(correction=0)  # one entry has no spread with n − 1", "undefined"),
    ("undefined", "var"): Remedy("y = x.var(correction=0)  # one entry has no spread with n − 1", "undefined"),
    ("undefined", "softmax"): Remedy(
        "# a row of which nothing is allowed has no softmax:\n"
        "# let it look at something, and drop its result\n"
        "empty = ~allowed.any(-1, keepdim=True)\n"
        'scores = scores.masked_fill(~allowed & ~empty, float("-inf"))\n'
        "weights = scores.softmax(-1).masked_fill(empty, 0)",
        "undefined",
    ),
    ("undefined", "acos"): Remedy(
        "y = torch.acos(x.clamp(-1 + 1e-7, 1 - 1e-7))  # the slope at 1 is infinite", "undefined"
    ),
    ("overflow", ""): Remedy(
        "# the number exists and has no room in its dtype:\n"
        "# scale it, or compute its logarithm\n"
        "y = f(x.double())  # to see what it is",
        FIND,
    ),
    ("overflow", "exp"): Remedy(
        "# torch.logsumexp, F.log_softmax, F.softplus and F.logsigmoid\n"
        "# are sums of exp that do not overflow\n"
        "y = torch.exp(x - x.max(-1, keepdim=True).values)",
        FIND,
    ),
    ("bad input", ""): Remedy(
        "# look for it where the data come from; or leave such rows out:\n"
        "good = torch.isfinite(x).all(-1)\n"
        "loss = per_row[good].mean()  # with ignoring.backward(loss)",
        "slicing-nan",
    ),
}
"""By kind and operator; the empty operator is for all others."""

_HALF = Remedy(
    "# float16 ends at 65504: a smaller scale, bfloat16,\n"
    "# or float32 for this function alone\n"
    "with torch.autocast(device_type, enabled=False):\n    y = f(x.float())",
    FIND,
)


def remedy(kind: str, operator: str, dtype: str, mended: bool | None) -> tuple[str, str]:
    """What to do, and the address of the page.

    >>> code, page = remedy("contaminated", "exp", "float32", True)
    >>> print(code)
    from zero_or_nan import ignoring
    ignoring.backward(loss)  # in place of loss.backward()
    """
    if kind == "contaminated":
        code = _IGNORE if mended else _IGNORE_GRAD
        found = Remedy(code, _CONTAMINATED_PAGES.get(operator, "ignoring-what-the-loss-ignored"))
    elif kind == "overflow" and dtype == "float16":
        found = _HALF
    else:
        found = REMEDIES.get((kind, operator)) or REMEDIES[kind, ""]
    return found.code, f"{PAGES}{found.page}.html"
