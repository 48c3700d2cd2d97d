"""What to do about an origin: code to paste, and the book's section about it, by kind, or by kind and situation.

Each statement in this file runs in a test, which compares the gradient with a reference. If no statement is right for
every program in a situation, the remedy is advice: comments alone. Statements under one another are alternatives,
unless one uses a name that another makes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from ...functions.numerics import numerics_of
from ...functions.rewrites import ADVICE, REWRITES, Rewrite
from ..births.call import UNREADABLE

PAGES = "https://zero-or-nan.github.io/zero-or-nan/chapters/"
OVERFLOW = "find-it-in-your-model#overflow"

DIVERGENCE, MOVE, GROWTH, LOST = "a divergence", "a move", "a growth", "a lost number"
BEYOND, EPSILON, OUTSIDE = "a number that float64 loses", "an eps that is 0", "outside of the domain"
"""Situations of an overflow: training steps made the numbers larger, or perhaps a single step, or the calls of one
line; or the number fits, but an intermediate number was lost, perhaps in float64, too, or because the dtype rounds a
small constant to 0."""


class Remedy(NamedTuple):
    """Code with a comment that says why, and the section about it: a page's name, `#`, and an anchor on it."""

    code: str
    section: str


_IGNORE = """\
from zero_or_nan import ignoring
ignoring.backward(loss)  # in place of loss.backward()"""

_IGNORE_IN = "from zero_or_nan import ignoring\n{}"

_IGNORE_AND = """\
from zero_or_nan import ignoring
ignoring.backward(loss)  # and fix the other origins, which the loss uses"""

_IGNORE_GRAD = """\
# ignoring does not fix it here: keep the element out of the function,
# and give the function a harmless number instead
safe = torch.where(used, x, torch.ones_like(x))
y = torch.where(used, f(safe), 0)"""

_RESET = """\
for module in model.modules():
    if hasattr(module, "reset_running_stats"):
        module.reset_running_stats()"""

CONTAMINATED = "ignoring-what-the-loss-ignored"
"""The page on contamination by functions without their own section."""

_NO_SPREAD = "undefined#std-of-one-element"

REMEDIES: dict[tuple[str, str], Remedy] = {
    ("undefined", ""): Remedy(
        "# the loss uses a number that does not exist: keep away from this point,\n"
        "# or leave the element out, with ignoring.backward(loss)\n"
        "keep = torch.isfinite(y)\n"
        "loss = torch.where(keep, y, 0).sum() / keep.sum().clamp_min(1)",
        "undefined#what-to-do",
    ),
    ("undefined", "a derivative"): Remedy(
        "# the value exists, but its derivative does not: to filter results is no help.\n"
        "# Keep the points `at` out of the function, and choose its value there\n"
        "safe = torch.where(at, torch.ones_like(x), x)\n"
        "y = torch.where(at, 0, f(safe))",
        "undefined#what-to-do",
    ),
    ("undefined", OUTSIDE): Remedy(
        "# a negative number has no logarithm and no root, and acos ends at 1: look for\n"
        "# the mistake before this line. A clamp hides it, unless it is a rounding",
        "undefined#what-to-do",
    ),
    ("undefined", "a complex power"): Remedy(
        "# a power of a complex number has no slope at 0: choose 0, or keep away from 0\n"
        "y = torch.where(z == 0, 0, torch.where(z == 0, 1, z) ** p)\n"
        "y = (z + 1e-12) ** p  # of a root: slope 5e5 at 0",
        "atlas#roots-and-powers",
    ),
    ("undefined", "a mean of nothing"): Remedy(
        "# the mean of no elements is 0 / 0\nloss = x[keep].sum() / keep.sum().clamp_min(1)  # 0 if nothing is kept",
        "nansum-nanmean#what-to-do",
    ),
    ("undefined", "a mean by weights of 0"): Remedy(
        "# every target has the weight 0, and the weighted mean is 0 / 0:\n"
        "# leave this batch out, or give a class of it a weight",
        "undefined#cross-entropy-with-every-target-ignored",
    ),
    ("undefined", "a spread of nothing"): Remedy(
        "# nothing was selected, and nothing has no spread: leave this batch out", _NO_SPREAD
    ),
    ("undefined", "step"): Remedy(
        "# a step divides by 0 if eps is 0, or is rounded to 0 in float16\n"
        "optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)  # for example\n"
        "# or keep the parameters in float32, and use torch.autocast",
        "mixed-precision#adam-makes-the-weights-nan",
    ),
    ("overflow", "step"): Remedy(
        "# the optimizer's step was too large: lower the learning rate, or clip. The\n"
        "# learning rate multiplies weight_decay, too\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before it",
        "divergence#what-to-do",
    ),
    ("bad input", "step"): Remedy(
        "# an option of the optimizer is not finite, such as lr: print the options in\n"
        "# optimizer.param_groups, and check the schedule of the learning rate",
        "divergence#what-to-do",
    ),
    ("overflow", ""): Remedy(
        "# the number exists, but it is too large for its dtype:\n"
        "# scale it, or compute its logarithm\n"
        "y = f(x.double())  # to see what it is",
        OVERFLOW,
    ),
    ("overflow", "float16"): Remedy(
        "# float16 ends at 65504: a smaller scale, bfloat16,\n"
        "# or float32 for this function alone\n"
        "with torch.autocast(device_type, enabled=False):\n    y = f(x.float())",
        "mixed-precision#what-to-do",
    ),
    ("overflow", "a slope"): Remedy(
        "# the value fits its dtype, and its derivative does not: scale the input or\n"
        "# the loss. Clipping does not help: it multiplies inf by 0, which is NaN",
        OVERFLOW,
    ),
    ("overflow", "large numbers"): Remedy(
        "# a number was large before this line. If each layer or time step makes it\n"
        "# larger: normalize between them, begin with smaller weights (initialization),\n"
        "# or take smaller steps. Otherwise scale it, or compute its logarithm\n"
        "y = f(x.double())  # to see what it is",
        OVERFLOW,
    ),
    ("overflow", GROWTH): Remedy(
        "# each call of this line made the numbers larger: normalize between layers or\n"
        "# time steps, begin with smaller weights (initialization), or take fewer steps",
        "divergence#exploding-gradients-within-one-step",
    ),
    ("overflow", DIVERGENCE): Remedy(
        "# the steps before made the numbers so large: do what is written above", "divergence#what-to-do"
    ),
    ("overflow", MOVE): Remedy(
        "# perhaps the step before made the numbers so large: do what is written above.\n"
        "# If it was meant to, normalize between layers or time steps",
        "divergence#what-to-do",
    ),
    ("overflow", LOST): Remedy(
        "# the number exists, but its dtype loses a number on the way to it. No line\n"
        "# that was tried in float64 was right: compute all in float64, or write the\n"
        "# formula in another way",
        OVERFLOW,
    ),
    ("overflow", BEYOND): Remedy(
        "# the number exists, but neither float64 nor a choice of 0 gives it: write the\n"
        "# formula in another way, without differences of nearly equal numbers",
        OVERFLOW,
    ),
    ("overflow", EPSILON): Remedy(
        "# the dtype rounds this small number to 0: compute the line in float32,\n"
        "# or take a larger one, such as 1e-4 in float16",
        "mixed-precision#an-epsilon-of-1e-8-is-0-in-float16",
    ),
    ("bad input", ""): Remedy(
        "# look for the cause in the source of the data, or leave such rows out,\n"
        "# with ignoring.backward(loss)\n"
        "good = torch.isfinite(x).reshape(len(x), -1).all(1)\n"
        "loss = per_row[good].sum() / good.sum().clamp_min(1)",
        "slicing-nan#what-to-do",
    ),
    ("bad input", "a target"): Remedy(
        '# if NaN in a target means "not measured", leave it out on both sides\n'
        "known = ~target.isnan()\n"
        "loss = loss_of(prediction[known], target[known])",
        "two-penguins#what-to-do",
    ),
    ("bad input", "a parameter"): Remedy(
        "# explain did not see how it got there: was the parameter initialized, and is\n"
        "# it finite in the file that it was loaded from? All such parameters:\n"
        "every = model.named_parameters()\n"
        "bad = [name for name, p in every if not p.isfinite().all()]",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "a buffer"): Remedy(
        "# explain did not see how it got there: by an earlier batch, or from a file?\n"
        f"# This resets the running statistics of a norm:\n{_RESET}",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "kept in a buffer"): Remedy(
        "# the running statistics of a norm kept what an earlier batch brought in:\n"
        f"# check a batch before the model sees it. This resets the statistics:\n{_RESET}",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "a number in the code"): Remedy(
        "# this line computes with an infinity that your code wrote down:\n"
        "# leave the computation out if the number is infinite, or take a finite one",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "an unreadable tensor"): Remedy(
        "# explain can't say whether this number was computed or came in with data:\n"
        "# check the tensor before this line",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "torch.func"): Remedy(
        "# explain did not see into this transform. Compute the same number with\n"
        "# torch.autograd.grad and create_graph=True: explain sees these passes",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "uninitialized memory"): Remedy(
        "# uninitialized: as far as explain saw, nothing has written all of this memory\n"
        "x = torch.zeros(shape)  # torch.empty leaves the memory as it is",
        "find-it-in-your-model#bad-input",
    ),
    ("bad input", "zero_grad"): Remedy(
        "# backward adds to .grad, and .grad held a NaN: explain the pass before, too\n"
        "optimizer.zero_grad()  # before the pass",
        "find-it-in-your-model#bad-input",
    ),
}
"""Remedies by kind and situation: the operator, or the result of `_situation`. An empty situation covers all others."""

REMEDIES |= {key: Remedy(*advice) for key, advice in ADVICE.items()}

_ROUNDING = 1e-3
"""The largest relative distance beyond the end of a domain that may be the rounding of a number at this end."""

_REFUSED = """\
# what is often written here was tried on your numbers. The loss or a gradient
# is then wrong, or as arbitrary as the constant in the code:"""

_ARGUMENT = re.compile(r"^(?:1 / )?([a-z0-9]+)\((-?[\d.e-]+)\)|^\((-[\d.e-]+)\) \*\* ")


def _situation(operator: str, operands: str) -> str:
    """What the operands say about an undefined number that the operator alone does not say."""
    if "the mean of no elements" in operands:
        return operator if operator == "cross_entropy" else "a mean of nothing"
    if "the mean of weights that are 0" in operands:
        return "a mean by weights of 0"
    if "the spread of no elements" in operands:
        return "a spread of nothing"
    if operands.endswith("of no elements = nan"):  # a loss that takes the mean
        return "a mean of nothing"
    if operator == "pow" and "j)" in operands:
        return "a complex power"
    argument = _ARGUMENT.match(operands)
    if argument is not None:
        number = float(argument[2] or argument[3])
        least, most = (0, math.inf) if argument[3] else numerics_of(argument[1]).domain
        if number < least - _ROUNDING * abs(least) or number > most + _ROUNDING * abs(most):
            return OUTSIDE
    return operator


def remedy(
    kind: str,
    operator: str,
    dtype: str,
    fixed: bool | None,
    operands: str = "",
    phase: str = "forward",
    has_others: bool = False,
    of_large: bool = False,
    refused: Sequence[str] = (),
    tensor: str = "",
    fits: bool | None = None,
    pass_line: str = "",
) -> tuple[str, str]:
    """What to do, and the address of the section about it.

    Args:
        kind, operator, dtype, operands, phase: as in `Origin`.
        fixed: whether `ignoring` gave finite gradients; None if it was not tried.
        has_others: whether gradients are still not finite because of other origins.
        of_large: whether one of the operands was already large.
        refused: code that was tried but did not give the right numbers, so it must not be the remedy.
        tensor: the name of the tensor that a bad input came in with; empty if it is unknown.
        fits: whether the dtype has room for the exact number; None if the exact result is not finite.
        pass_line: the user's line that begins the backward pass, with `ignoring` in it; empty if it is unknown.

    >>> code, page = remedy("contaminated", "exp", "float32", True)
    >>> print(code)
    from zero_or_nan import ignoring
    ignoring.backward(loss)  # in place of loss.backward()
    """
    known = numerics_of(operator)
    points = known.points or numerics_of(known.like).points
    if kind == "contaminated":
        code = (
            _IGNORE_IN.format(pass_line)
            if fixed and pass_line
            else _IGNORE
            if fixed
            else _IGNORE_AND
            if has_others
            else _IGNORE_GRAD
        )
        own = REMEDIES.get(("bad input", operator)) if operator == "a target" else None
        section = known.section or CONTAMINATED
        return code, address_of(own.section if own else f"{section}#what-to-do")
    if operator in (BEYOND, EPSILON):
        kind = "overflow"
    elif operator == "torch.func":
        kind = "bad input"
    if kind == "undefined":
        operator = known.like or known.name
        situation = _situation(operator, operands)
        if situation == operator and operator in REWRITES:
            section = points or REMEDIES[kind, ""].section
            if refused:
                lines = [_REFUSED, *(f"#   {code}" for code in refused)]
                return "\n".join(lines), address_of(section)
            return _not_tried(REWRITES[operator]), address_of(section)
        kind, operator = ("overflow", LOST) if fits and situation == OUTSIDE else (kind, situation)
    if operator in (DIVERGENCE, MOVE, GROWTH, BEYOND, EPSILON, LOST):
        pass  # it matters more than the dtype
    elif kind == "overflow" and dtype == "float16":
        operator = "float16"
    elif kind == "bad input" and operands.endswith(UNREADABLE) and (kind, operator) not in REMEDIES:
        operator = "an unreadable tensor"
    elif (kind, operator) not in REMEDIES or (kind, phase) == ("overflow", "backward"):
        kind = kind if fits is None else "overflow"
        of_slope = {"undefined": "a derivative", "overflow": "a slope"}.get(kind, "")
        is_grown = kind == "overflow" and of_large
        operator = LOST if fits else of_slope if phase == "backward" else "large numbers" if is_grown else ""
    found = REMEDIES[kind, operator]
    code = found.code
    if (kind, operator) == ("bad input", "") and tensor.isidentifier():
        code = re.sub(r"\bx\b", tensor, code)  # the rows to leave out are those of this tensor
    is_general = kind == "undefined" and operator in ("", "a derivative")
    return code, address_of(is_general and points or found.section)


def _not_tried(rewrites: Sequence[Rewrite]) -> str:
    """Rewrites as code that stands for itself: those that choose a number, if there are any."""
    chosen = [each for each in rewrites if each.choice] or rewrites
    texts = [each.choice or f"in place of {ast.unparse(each.pattern)}" for each in chosen]
    written = [f"# {text}:\ny = {each.code}" for text, each in zip(texts, chosen, strict=True)]
    return "\n".join(
        ["# the numbers of this call are not known any more, so this was not tried on them", *written[-2:]]
    )


def address_of(section: str) -> str:
    """The address of a section of the book: a page's name, `#`, and an anchor on it."""
    page, _, anchor = section.partition("#")
    return f"{PAGES}{page}.html#{anchor}"
