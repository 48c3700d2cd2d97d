"""Whether what a report prints as an equation is true in float64: `exp(100) > 3.4e38`, `0 / 0 = nan`, `0 × inf`."""

import math
import re

import torch


class Functions(dict):
    """The functions of PyTorch by name, and numbers in float64."""

    def __missing__(self, name):
        return getattr(torch.ops.aten, name)


def number(text):
    return torch.tensor(float(text), dtype=torch.float64)


def value(text):
    """The value of a computation; None if the text is none, as in `linear of 4×3 elements (1 to 2)`."""
    code = text.replace("×", "*").replace("−", "-")
    code = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?(?:e-?\d+)?|inf|nan)\b", r"number('\1')", code)
    if not re.search(r"[*/(+]|- ", code) or " of " in text or " in " in text or "j)" in text:
        return None
    try:
        return float(eval(code, {"__builtins__": {}}, Functions(number=number)))
    except (AttributeError, SyntaxError, RuntimeError, TypeError):
        return None


def is_true(text):
    """Whether an equation holds; None if the text is none."""
    left, sign, right = re.fullmatch(r"(.*?)(?: ([=<>]) (\S+))?", re.split("[:,;]", text)[0].strip()).groups()
    found = value(left)
    if found is None or sign is None and math.isfinite(found) and re.search("[×/]", left):
        return None  # the product of a slope, which overflows in float32
    if sign is None:
        return not math.isfinite(found)
    said = float(right)
    return {"=": found == said or math.isnan(found) and math.isnan(said), ">": found > said, "<": found < said}[sign]


def are_true(operands):
    """Whether no equation in what an origin prints of its operands is false."""
    return all(is_true(part) is not False for part in operands.split("; in backward "))
