"""The nodes of PyTorch's graphs that have a derivative: the function that makes each, and the input of each output.

The message `Function 'PowBackward1' returned nan values in its 1th output` names a node and a number. PyTorch's own
list of derivatives, which is installed with torch, says what both mean. Therefore this module contains no list of
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import show
from .advice import CALLS, answers
from .atlas import graph_nodes

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
    listed = {node.name: node for node in _listed(_derivatives())}

    def node(name: str) -> Node:
        original = listed.get(name.removesuffix("_copy"), Node(name))
        return Node(name, original.operator, original.inputs)

    return {name: node(name) for name in sorted(dir(torch._C._functions)) if _NAME.search(name)}


def node_names() -> None:
    """Show the nodes that people meet, with advice, and a folded list of all others. The site's search finds each."""
    every = nodes()
    text = "\n".join(f"{node.name}: {', '.join(node.inputs)} of {node.operator}" for node in every.values())
    show.show(show.Item(text, listed(every, made_by())))


def listed(every: Mapping[str, Node], calls: Mapping[str, Sequence[str]]) -> str:
    """The list as HTML. `calls` has the functions whose graphs have a node, by its name."""
    rows = {name: _row(node, calls.get(name, ())) for name, node in every.items()}
    first = "".join(f"<li>{' '.join(map(rows.pop, names))}{answer}</li>" for answer, names in answers(every).items())
    rest = "".join(f"<li>{row}</li>" for row in rows.values())
    version = torch.__version__.partition("+")[0]
    title = f"<summary>The {len(rows)} other nodes of PyTorch {version} that have a derivative</summary>"
    return f'<ul class="zn-nodes">{first}</ul><details>{title}<ul class="zn-nodes">{rest}</ul></details>'


def _row(node: Node, calls: Sequence[str]) -> str:
    """The node, its function and its outputs. Its name has its own paragraph, because people search for the name."""
    said = [show.code(node.function)] if node.function else []
    if calls:
        said.append(f"also {', '.join(map(show.code, calls))}")
    if node.inputs:
        said.append("outputs: " + ", ".join(f"{number} {show.code(name)}" for number, name in enumerate(node.inputs)))
    # The search of the site finds this element only if no page is about this name.
    return (
        f'<div class="zn-searched" id="node-{node.name}" data-fallback>'
        f"<p><strong>{node.name}</strong></p> <p>{'; '.join(said)}</p></div>"
    )


def made_by(calls: Sequence[str] | None = None) -> dict[str, list[str]]:
    """The nodes in the graphs of some calls: for each node, the functions whose graphs have it.

    Args:
        calls: expressions that may use `F`, `nn`, `torch`, and `t`, which makes a tensor of the given shape. The
            default is common layers and losses whose nodes have other names than the functions.
    """
    found: dict[str, list[str]] = {}
    for call in CALLS if calls is None else calls:
        function = call.partition("(")[0]
        result = eval(call, {"torch": torch, "F": F, "nn": nn, "t": _tensor, "labels": torch.tensor([0, 1])})
        while isinstance(result, tuple):
            result = result[0]
        for name in dict.fromkeys(node.name() for node in graph_nodes(result)):
            if name not in _COMMON and function not in found.setdefault(name, []):
                found[name].append(function)
    return found


_COMMON = {
    f"{name}Backward0"
    for name in (
        "Abs Add Clone Div Expand Mean Mul Neg Permute Reshape Select Sigmoid Slice Squeeze Sub Sum T Transpose "
        "UnsafeSplit UnsafeView Unsqueeze View"
    ).split()
}
"""Nodes that occur in almost every graph."""


def _tensor(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape).requires_grad_()


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
