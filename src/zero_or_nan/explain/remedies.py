"""What to do about an origin: code to paste, and the section about it. By kind, or by kind and operator."""

from __future__ import annotations

from typing import NamedTuple

PAGES = "https://zero-or-nan.github.io/zero-or-nan/chapters/"
OVERFLOW = "find-it-in-your-model#overflow"


class Remedy(NamedTuple):
    """Code with a comment that says why, and the section about it: a page's name, `#`, and an anchor on it."""

    code: str
    section: str


_IGNORE = """\
from zero_or_nan import ignoring
ignoring.backward(loss)  # in place of loss.backward()"""

_IGNORE_GRAD = """\
# ignoring does not fix it here: keep the element out of the function,
# and give the function a harmless number instead
safe = torch.where(used, x, torch.ones_like(x))
y = torch.where(used, f(safe), 0)"""

CONTAMINATED: dict[str, str] = {
    "": "ignoring-what-the-loss-ignored#what-to-do",
    "exp": "where-over-exp#what-to-do",
    "div": "where-over-division#what-to-do",
    "reciprocal": "where-over-division#what-to-do",
    "linear": "slicing-nan#what-to-do",
    "matmul": "slicing-nan#what-to-do",
    "sub": "slicing-nan#what-to-do",
    "nansum": "nansum-nanmean#what-to-do",
    "nanmean": "nansum-nanmean#what-to-do",
    "log": "where-over-exp#what-to-do",
    "sqrt": "undefined#what-to-do",
    "pow": "undefined#what-to-do",
    "norm": "undefined#what-to-do",
    "acos": "undefined#what-to-do",
    "softmax": "undefined#a-fully-masked-attention-row",
    "scaled_dot_product_attention": "undefined#a-fully-masked-attention-row",
    "multi_head_attention_forward": "undefined#a-fully-masked-attention-row",
}
"""The sections on contamination, by operator; the empty one is for all others."""

REMEDIES: dict[tuple[str, str], Remedy] = {
    ("undefined", ""): Remedy(
        "# the loss uses a number that does not exist: keep away from this point,\n"
        "# or leave the element out\n"
        "keep = torch.isfinite(y)\nloss = y[keep].mean()  # with ignoring.backward(loss)",
        "undefined#what-to-do",
    ),
    ("undefined", "log"): Remedy(
        "# of a probability: F.log_softmax(logits, dim=-1) or F.logsigmoid(logits)\n"
        "y = x.clamp_min(1e-8).log()  # else say how small is small enough",
        "atlas#logarithms-entropy-and-losses",
    ),
    ("undefined", "sqrt"): Remedy(
        "# of a sum of squares: torch.linalg.vector_norm, slope 0 there\n"
        "y = (x + 1e-12).sqrt()  # else: its slope at 0 is 5e5",
        "atlas#roots-and-powers",
    ),
    ("undefined", "norm"): Remedy(
        "y = (x.square().sum(-1) + 1e-12).sqrt()  # no slope at 0", "atlas#norms-and-distances"
    ),
    ("undefined", "pow"): Remedy(
        "y = x.clamp_min(1e-8) ** p  # at 0 a power below 1 has no slope", "atlas#roots-and-powers"
    ),
    ("undefined", "div"): Remedy(
        "y = a / torch.where(b == 0, 1, b)  # decide what a / 0 is to be\n"
        "y = total / count.clamp_min(1)  # where b is a count",
        "division-under-a-mask#what-to-do",
    ),
    ("undefined", "std"): Remedy(
        "y = x.std(correction=0)  # with n − 1, one element has no spread", "undefined#std-of-one-element"
    ),
    ("undefined", "var"): Remedy(
        "y = x.var(correction=0)  # with n − 1, one element has no spread", "undefined#std-of-one-element"
    ),
    ("undefined", "softmax"): Remedy(
        "# a row without any allowed element has no softmax:\n"
        "# allow the elements, and drop the row's result\n"
        "empty = ~allowed.any(-1, keepdim=True)\n"
        'scores = scores.masked_fill(~allowed & ~empty, float("-inf"))\n'
        "weights = scores.softmax(-1).masked_fill(empty, 0)",
        "undefined#a-fully-masked-attention-row",
    ),
    ("undefined", "acos"): Remedy(
        "y = torch.acos(x.clamp(-1 + 1e-7, 1 - 1e-7))  # the slope at 1 is infinite", "atlas#angles"
    ),
    ("undefined", "step"): Remedy(
        "# a step divides by 0 if eps is 0, or is rounded to 0 in float16\n"
        "optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)\n"
        "# or keep the parameters in float32, and use torch.autocast",
        "undefined#what-to-do",
    ),
    ("overflow", "step"): Remedy(
        "# the optimizer's step was too large: lower the learning rate, or clip\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before it",
        OVERFLOW,
    ),
    ("overflow", ""): Remedy(
        "# the number exists, but it is too large for its dtype:\n"
        "# scale it, or compute its logarithm\n"
        "y = f(x.double())  # to see what it is",
        OVERFLOW,
    ),
    ("overflow", "exp"): Remedy(
        "# torch.logsumexp, F.log_softmax, F.softplus and F.logsigmoid\n"
        "# are sums of exp that do not overflow\n"
        "y = torch.exp(x - x.max(-1, keepdim=True).values)",
        OVERFLOW,
    ),
    ("bad input", ""): Remedy(
        "# look for the cause in the source of the data, or leave such rows out:\n"
        "good = torch.isfinite(x).all(-1)\n"
        "loss = per_row[good].mean()  # with ignoring.backward(loss)",
        "slicing-nan#what-to-do",
    ),
    ("bad input", "zero_grad"): Remedy(
        "# backward adds to .grad, and .grad held a NaN: explain the pass before, too\n"
        "optimizer.zero_grad()  # before the pass",
        "find-it-in-your-model#bad-input",
    ),
}
"""By kind and operator; the empty operator is for all others."""

_HALF = Remedy(
    "# float16 ends at 65504: a smaller scale, bfloat16,\n"
    "# or float32 for this function alone\n"
    "with torch.autocast(device_type, enabled=False):\n    y = f(x.float())",
    OVERFLOW,
)


def remedy(kind: str, operator: str, dtype: str, mended: bool | None) -> tuple[str, str]:
    """What to do, and the address of the section about it.

    >>> code, page = remedy("contaminated", "exp", "float32", True)
    >>> print(code)
    from zero_or_nan import ignoring
    ignoring.backward(loss)  # in place of loss.backward()
    """
    if kind == "contaminated":
        code = _IGNORE if mended else _IGNORE_GRAD
        found = Remedy(code, CONTAMINATED.get(operator, CONTAMINATED[""]))
    elif kind == "overflow" and dtype == "float16":
        found = _HALF
    else:
        found = REMEDIES.get((kind, operator)) or REMEDIES[kind, ""]
    page, _, anchor = found.section.partition("#")
    return found.code, f"{PAGES}{page}.html#{anchor}"
