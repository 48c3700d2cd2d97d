"""The formulas of PyTorch's own derivatives, read from the installed PyTorch."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from importlib import resources


def formulas(node: str) -> Mapping[str, str]:
    """The formulas of a node in PyTorch's `derivatives.yaml`, by argument, in the order of the node's edges.

    The result is empty if the file has no formula for the node, or if PyTorch is installed without the file.

    >>> formulas("ExpBackward0")
    {'self': 'grad * result.conj()'}
    """
    return _all().get(node, {})


_ENTRY = re.compile(r"^- name: (\w+)(?:\.\w+)?\((.*?)\) -> .*\n((?:[ #].*\n|\n)*)", re.MULTILINE)
_FORMULA = re.compile(r"^(?:  |      )(\w+(?:, \w+)*): +(\S.*)$", re.MULTILINE)


@functools.cache
def _all() -> dict[str, dict[str, str]]:
    try:
        text = resources.files("torchgen").joinpath("packaged/autograd/derivatives.yaml").read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError):
        return {}
    found: dict[str, dict[str, str]] = {}
    count: Counter[str] = Counter()
    for function, arguments, lines in _ENTRY.findall(text):
        names = re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", arguments)
        written: dict[str, str] = {}
        for keys, formula in _FORMULA.findall(lines):
            for key in keys.split(", "):  # the first is the default; the others belong to other dispatch keys
                written.setdefault(key, formula.strip('"'))
        by_argument = {name: written[name] for name in names if written.get(name, _NONE) != _NONE}
        if by_argument:
            # PyTorch numbers the functions with the same name in the order of the file.
            stem = "".join(part.title() for part in function.split("_"))
            prefix = f"{stem}Backward".replace("ForwardBackward", "Backward")
            found[f"{prefix}{count[prefix]}"] = by_argument
            count[prefix] += 1
    return found


_NONE = "non_differentiable"
