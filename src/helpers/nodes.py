"""The nodes of PyTorch's graphs that have a derivative: the function that makes each, and the input of each output.

The message `Function 'PowBackward1' returned nan values in its 1th output` names a node and a number. PyTorch's own
list of derivatives, which is installed with torch, says what both mean. Therefore this module contains no list of
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

_NAME = re.compile(r"Backward(s|Autograd\w+?)?\d*(_copy)?$")
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
        inputs: the names of the operator's inputs, in the order of the node's outputs. Output 1 is the gradient of
            `inputs[1]`.
    """

    name: str
    operator: str = ""
    inputs: tuple[str, ...] = ()

    @property
    def public(self) -> str:
        """The operator's name without its overload and without leading underscores."""
        return self.operator.partition(".")[0].lstrip("_")

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
    known = {node.name: node for node in _listed(_derivatives())}
    names = [name for name in sorted(dir(torch._C._functions)) if _NAME.search(name)]
    return {name: replace(known.get(name.removesuffix("_copy"), Node(name)), name=name) for name in names}


def _derivatives() -> str:
    """PyTorch's own list of derivatives; empty if the installation lacks it."""
    found = find_spec("torchgen")
    places = found.submodule_search_locations if found else None
    path = Path(next(iter(places)), "packaged", "autograd", "derivatives.yaml") if places else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _listed(text: str) -> Iterator[Node]:
    """The nodes of a list of derivatives, with the numbers that PyTorch's own generator gives to equal names."""
    count: Counter[str] = Counter()
    for block in re.split(r"(?m)^- name: ", text)[1:]:
        schema, _, rest = block.partition("\n")
        operator, _, arguments = schema.strip().partition("(")
        given = [part.split("=")[0].split()[-1] for part in arguments.rpartition(") ->")[0].split(", ") if " " in part]
        for key, lines in _dispatched(rest):
            with_derivative = {
                name.strip()
                for names, formula in re.findall(r"(?m)^ *([\w, ]+): *(\S.*)$", lines)
                for name in names.split(",")
                if formula.strip() != "non_differentiable"
            }
            inputs = tuple(name for name in given if name in with_derivative)
            if inputs:
                prefix = _prefix(operator.partition(".")[0]) + ("" if key == "Default" else key)
                yield Node(f"{prefix}{count[prefix]}", operator, inputs)
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
