"""Zeros that PyTorch's own derivative formulas fill in: they say nothing about the loss.

The derivative of a norm is v / norm. PyTorch's formula fills in 0 where the norm is 0, by `masked_fill`. If the
gradient is differentiated again, this `masked_fill` is a node of the graph. The node looks like a selection of the
user's program, but the program selected nothing. The 0 does not tell the second derivative of the program, which may
be another number, or may not exist. So the node must not count as a selection. Then backward multiplies the 0 by the
infinite derivative of v / norm, and the result is NaN, as in plain PyTorch.

`mark_formula` marks such nodes while a pass of `ignoring` is recorded. `mark_formulas` finds them in a gradient that
plain PyTorch recorded. In such a gradient, a node belongs to a formula if both of these are true:

- Its `next_functions` are like a formula in the records (`Function.fills`), such as `MaskedFill(Div(Norm))`.
- Its condition (the mask of `masked_fill`, the condition of `where`) has no Python object before we read it. Each
  tensor that a program computes in Python has one, which lives as long as the tensor does. A tensor that a formula
  computes in C++ gets one when somebody asks for it.

The powers that a formula computes are marked, too. A program's y ** 0 ignores y, but the derivative of y ** 1 is
1 * y ** 0, and the program used y.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..masks.numbers import is_in_memory
from .graph import KINDS, Graph, function_of, read_saved

_Formula = tuple[str, tuple[Any, ...]] | None
"""The name of a function, and what is ahead of it. None is a missing gradient."""

FORMULAS: dict[str, list[Sequence[_Formula]]] = {"MaskedFill": [], "Where": []}
"""What is ahead of a node that fills in zeros, by the node's function."""


def add_formula(written: str) -> None:
    """Add a node that fills in zeros, and what is ahead of it, as in "MaskedFill(Div(Norm))"."""

    def parsed(part: Any) -> _Formula:
        if isinstance(part, ast.Constant):
            return None
        function, ahead = (part.func, part.args) if isinstance(part, ast.Call) else (part, [])
        return ast.unparse(function), tuple(map(parsed, ahead))

    name, ahead = parsed(ast.parse(written, mode="eval").body) or ("", ())
    FORMULAS[name].append(ahead)


_KEY = "zero_or_nan: whether a derivative formula fills in the zeros of this node"
_EVER = False
"""Whether any node has this mark. If not, `is_fill` is cheap."""

_CONDITIONS = {
    kind: condition
    for kind in KINDS
    for function, condition in (("MaskedFill", "mask"), ("Where", "condition"))
    if function_of(kind.__name__) == function
}
"""The types of the nodes that choose by a condition, and the name of the condition among their saved tensors."""

_POWERS = {kind for kind in KINDS if function_of(kind.__name__) == "Pow"}
"""The types of the nodes of powers."""

_RESHAPING = frozenset({"Conj", "Expand", "Squeeze", "Unsqueeze", "View"})
"""Nodes that `FORMULAS` don't mention."""


def is_fill(node: Any) -> bool:
    """True if a derivative formula of PyTorch made this node, to fill in zeros or to compute a power."""
    return _EVER and _KEY in node.metadata


def mark_formula(node: Any, selects: bool, results: Iterable[Any], arriving: Iterable[Any], graph: Graph) -> None:
    """Mark the nodes with which PyTorch's derivative formula chose by a condition, if the derivative was recorded.

    Args:
        node: the node whose derivative has run. The formula of a Function in Python belongs to the program.
        selects: whether the forward function selects. Then the formula repeats a selection of the program.
        results: what the formula returned, with its record.
        arriving: the cotangents that the formula got. Their own record belongs to other formulas.
        graph: the graph whose derivatives are recorded.
    """
    if not (selects or not torch.is_grad_enabled() or isinstance(node, BackwardCFunction)):
        for made in recorded_between(results, arriving, graph):
            if type(made) in _CONDITIONS:
                _mark(made)


def recorded_between(results: Iterable[Any], arriving: Iterable[Any], graph: Graph) -> Iterator[Any]:
    """The nodes that were recorded while a derivative ran. The arguments are as in `mark_formula`."""
    seen = {None, *map(_maker, arriving)}
    stack = list(map(_maker, results))
    while stack:
        node = stack.pop()
        if node in seen or node in graph or isinstance(node, BackwardCFunction):  # the last: a cotangent that enters
            continue
        seen.add(node)
        yield node
        stack += [ahead for ahead, _ in node.next_functions]


def mark_formulas(graph: Graph) -> None:
    """Mark the nodes of formulas that plain PyTorch recorded in this graph, and all powers of formulas."""
    choosing = [node for node in graph if type(node) in _CONDITIONS and not is_fill(node)]
    for node in _computed_in_cpp([node for node in choosing if fills_in(node)]):
        _mark(node)
    powers = {node for node in graph if type(node) in _POWERS and _may_be_of_0(node)}
    for node, edges in graph.items() if powers else ():
        for ahead, _ in edges if type(node).__name__ in ("MulBackward0", "MulBackward1") else ():
            if ahead in powers and _is_derivative(node, ahead):
                _mark(ahead)


def _may_be_of_0(power: Any) -> bool:
    """True if an exponent may be 0."""
    kind = type(power).__name__
    return kind == "PowBackward1" or kind == "PowBackward0" and power._saved_exponent == 0


def _is_derivative(product: Any, power: Any) -> bool:
    """True if a product with a power is the derivative of a power: p * y ** (p - 1).

    Python multiplies by a number as by a tensor. The node of a product with a number was made in C++.
    """
    if type(product).__name__ == "MulBackward1":
        return type(power).__name__ == "PowBackward0" and product._saved_other == power._saved_exponent + 1
    if type(power).__name__ != "PowBackward1":
        return False
    factor, exponent = read_saved(product, "self", unknown=True), read_saved(power, "exponent", unknown=True)
    if not (is_in_memory(factor) and is_in_memory(exponent)) or factor.device != exponent.device:
        return False
    return torch.equal(factor, exponent + 1)


def fills_in(node: Any) -> bool:
    """True if a node that chooses is like a formula."""
    ahead = [ahead for ahead, _ in node.next_functions]
    return any(_are_like(ahead, formula) for formula in FORMULAS[function_of(node.name())])


def _maker(thing: Any) -> Any:
    return thing.grad_fn if isinstance(thing, Tensor) else None


def _mark(node: Any) -> None:
    global _EVER
    _EVER = True
    node.metadata[_KEY] = True


def _is_like(node: Any, formula: _Formula) -> bool:
    """True if the functions of a formula are found from this node on."""
    if node is None or formula is None:
        return node is formula
    name = function_of(node.name())
    if name == formula[0]:
        return _are_like([ahead for ahead, _ in node.next_functions], formula[1])
    return name in _RESHAPING and any(_is_like(ahead, formula) for ahead, _ in node.next_functions)


def _are_like(ahead: Sequence[Any], parts: Sequence[_Formula]) -> bool:
    """The same for the nodes ahead of a node. If a gradient is missing, the order counts."""
    if None in parts:
        return len(ahead) == len(parts) and all(map(_is_like, ahead, parts))
    return all(any(_is_like(each, part) for each in ahead) for part in parts)


def _computed_in_cpp(nodes: Sequence[Any]) -> list[Any]:
    """The nodes whose condition gets its Python object only here.

    The objects that exist before are moved out of the youngest generation of the garbage collector.
    """
    if not nodes:
        return []
    was_enabled = gc.isenabled()
    gc.disable()  # a collection in between would move the new objects, too
    try:
        gc.collect(0)
        conditions = [read_saved(node, _CONDITIONS[type(node)], unknown=True) for node in nodes]
        young = {id(thing) for thing in gc.get_objects(0)}
        return [node for node, condition in zip(nodes, conditions, strict=True) if id(condition) in young]
    finally:
        if was_enabled:
            gc.enable()
