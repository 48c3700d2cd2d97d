"""The nodes of PyTorch's graphs that have a derivative: the function that makes each, and a formula for each output.

The message `Function 'PowBackward1' returned nan values in its 1th output` names a node and a number. PyTorch's own
list of derivatives, which is installed with torch, says what both mean. Therefore this module contains no list of
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_NAME = re.compile(r"Backward(s|Autograd\w+?)?\d*(_copy)?$")
_FORMULA = re.compile(r"^(?:  |      )(\w[\w, ]*): *(\S.*?)(?=^(?:  |      )\w[\w, ]*: |\Z)", re.DOTALL | re.MULTILINE)
"""The names in a block of the list, each with its formula, which may have several lines."""
_PLACES = {
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "torch": torch,
    "Tensor": Tensor,
    "F": F,
}


@dataclass(frozen=True)
class Node:
    """A node of the graph, identified by its name in error messages.

    Attributes:
        name: the name, such as `"PowBackward1"`.
        operator: the ATen operator whose derivative the node computes, such as `"pow.Tensor_Tensor"`. Empty if
            PyTorch's list does not have the node.
        formulas: PyTorch's formula for the gradient of each input that has one, by the input's name.
        inputs: the names of these inputs, in the order of the node's outputs. Output 1 is the gradient of `inputs[1]`.
    """

    name: str
    operator: str = ""
    formulas: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.formulas)

    @property
    def public(self) -> str:
        """The operator's name without its overload and without leading underscores."""
        return self.operator.partition(".")[0].lstrip("_")

    @property
    def arguments(self) -> list[Any]:
        """The arguments of the operator, as PyTorch's schema has them."""
        name, _, overload = self.operator.partition(".")
        return list(torch._C._get_schema(f"aten::{name}", overload).arguments) if name else []

    @property
    def function(self) -> str:
        """The Python function with the operator's name, such as `torch.pow`; if none exists, the operator's name."""
        name = self.operator.partition(".")[0]
        for public in dict.fromkeys((self.public, name)):
            for place, module in _PLACES.items():
                family = place.rpartition(".")[2] + "_"
                short = public.removeprefix(family) if place != "torch" else public
                if short and hasattr(module, short) and (short != public or not place.startswith("torch.")):
                    return f"{place}.{short}"
        return f"aten::{name}" if name else ""


def nodes() -> dict[str, Node]:
    """Every node of this PyTorch that has a derivative, by its name, in alphabetical order."""
    return {name: node(name) for name in sorted(dir(torch._C._functions)) if _NAME.search(name)}


def node(name: str) -> Node:
    """The node that has this name in error messages. If PyTorch's list lacks it, only its name is known.

    >>> node("ExpBackward0").formulas
    {'self': 'grad * result.conj()'}
    """
    return replace(_known().get(name.removesuffix("_copy"), Node(name)), name=name)


@cache
def _known() -> dict[str, Node]:
    try:
        text = files("torchgen").joinpath("packaged/autograd/derivatives.yaml").read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError):  # this PyTorch is installed without its list of derivatives
        return {}
    return {node.name: node for node in _listed(text)}


def _listed(text: str) -> Iterator[Node]:
    """The nodes of a list of derivatives, with the numbers that PyTorch's own generator gives to equal names."""
    count: Counter[str] = Counter()
    for block in re.split(r"(?m)^- name: ", text)[1:]:
        schema, _, rest = block.partition("\n")
        operator, _, arguments = schema.strip().partition("(")
        given = [part.split("=")[0].split()[-1] for part in arguments.rpartition(") ->")[0].split(", ") if " " in part]
        for key, lines in _dispatched(rest):
            written = {
                name.strip(): " ".join(formula.split()).strip("\"' ")
                for names, formula in _FORMULA.findall(lines)
                for name in names.split(",")
                if formula.strip() != "non_differentiable"
            }
            if formulas := {name: written[name] for name in given if name in written}:
                prefix = _prefix(operator.partition(".")[0]) + ("" if key == "Default" else key)
                yield Node(f"{prefix}{count[prefix]}", operator, formulas)
                count[prefix] += 1


def _dispatched(block: str) -> Iterator[tuple[str, str]]:
    """The lines of each dispatch key of a block. The lines of a block without keys belong to the default."""
    block = re.sub(r"(?m)^\s*#.*$", "", block)
    _, has_keys, keyed = block.partition("  dispatch:\n")
    if not has_keys:
        yield "Default", block
        return
    parts = re.split(r"(?m)^    (\w+):\s*$", keyed)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _prefix(operator: str) -> str:
    camel = "".join(part.title() for part in operator.split("_"))
    return f"{camel}Backward".replace("ForwardBackward", "Backward")
