"""Zeros that PyTorch's own derivative formulas fill in: they say nothing about the loss.

The derivative of a norm is v / norm. PyTorch's formula fills in 0 where the norm is 0, by `masked_fill`. If the
gradient is differentiated again, this `masked_fill` is a node of the graph. The node looks like a selection of the
user's program, but the program selected nothing. The 0 does not tell the second derivative of the program, which may
be another number, or may not exist. So the node must not count as a selection. Then backward multiplies the 0 by the
infinite derivative of v / norm, and the result is NaN, as in plain PyTorch. Some formulas fill in a NaN, as that of
`logit` outside of 0 to 1. Then the 0 that the derivative of this `where` sends to the formula says as little.

`mark_formula` marks such nodes while a pass of `ignoring` is recorded. `mark_formulas` finds them in a gradient that
plain PyTorch recorded. In such a gradient, a node belongs to a formula if both of these are true:

- Its `next_functions` are like a formula in the records (`Function.fills`), such as `MaskedFill(Div(Norm))`.
- Its condition (the mask of `masked_fill`, the condition of `where`) has no Python object before we read it. Each
  tensor that a program computes in Python has one, which lives as long as the tensor does. A tensor that a formula
  computes in C++ gets one when somebody asks for it.

The formula of a function that selects repeats this selection, so its nodes are not marked. Where such a formula
compared a NaN, it selected nothing: `mark_formula` notes these elements on the node, and `unordered_at` returns them.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..masks.mask import Mask
from .graph import KINDS, Graph, function_of, read_saved

_Formula = tuple[str, tuple[Any, ...]] | None
"""The name of a function, and what is ahead of it. None is a missing gradient."""

_If = Callable[[Any], bool] | None

FORMULAS: dict[str, list[tuple[Sequence[_Formula], _If]]] = {"MaskedFill": [], "Where": []}
"""What is ahead of a node that fills in zeros, and a condition on the node, by the node's function."""


def add_formula(written: str, only_if: _If) -> None:
    """Add a node that fills in zeros, and what is ahead of it, as in "MaskedFill(Div(Norm))"."""

    def parsed(part: Any) -> _Formula:
        if isinstance(part, ast.Constant):
            return None
        function, ahead = (part.func, part.args) if isinstance(part, ast.Call) else (part, [])
        return ast.unparse(function), tuple(map(parsed, ahead))

    name, ahead = parsed(ast.parse(written, mode="eval").body) or ("", ())
    FORMULAS[name].append((ahead, only_if))


_KEY = "zero_or_nan: whether a derivative formula fills in the zeros of this node"
_UNORDERED = "zero_or_nan: where the condition of this node compared a NaN"
_EVER = False
"""Whether any node has one of these marks. If not, `is_fill` and `unordered_at` are cheap."""

_CONDITIONS = {
    kind: condition
    for kind in KINDS
    for function, condition in (("MaskedFill", "mask"), ("Where", "condition"))
    if function_of(kind.__name__) == function
}
"""The types of the nodes that choose by a condition, and the name of the condition among their saved tensors."""

_RESHAPING = frozenset({"Conj", "Expand", "Squeeze", "Unsqueeze", "View"})
"""Nodes that `FORMULAS` don't mention."""


def is_fill(node: Any) -> bool:
    """True if a derivative formula of PyTorch made this node, to fill in zeros."""
    return _EVER and _KEY in node.metadata


def unordered_at(node: Any) -> Mask:
    """The elements at which the condition of a formula's node compared a NaN; None if it compared none."""
    mask: Mask = node.metadata.get(_UNORDERED) if _EVER else None
    return mask


def mark_formula(
    node: Any,
    selects: bool,
    results: Iterable[Any],
    arriving: Iterable[Any],
    graph: Graph,
    where_unordered: Callable[[Any], Mask] | None = None,
) -> None:
    """Mark the nodes with which PyTorch's derivative formula chose by a condition, if the derivative was recorded.

    Args:
        node: the node whose derivative has run. The formula of a Function in Python belongs to the program.
        selects: whether the forward function selects. Then the formula repeats a selection of the program.
        results: what the formula returned, with its record.
        arriving: the cotangents that the formula got. Their own record belongs to other formulas.
        graph: the graph whose derivatives are recorded.
        where_unordered: gives the elements at which a condition compared a NaN. There, the forward function selects
            nothing. None if the formula compares nothing.
    """
    global _EVER
    if selects and where_unordered is None or not torch.is_grad_enabled() or isinstance(node, BackwardCFunction):
        return
    for made in recorded_between(results, arriving, graph):
        if type(made) in _CONDITIONS:
            if not selects or None in fills_in(made):  # `renorm` selects, and its derivative has that of a norm in it
                _mark(made)
            elif where_unordered is not None:
                _EVER = True
                made.metadata[_UNORDERED] = where_unordered(read_saved(made, _CONDITIONS[type(made)]))


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
    """Mark the nodes of formulas that plain PyTorch recorded in this graph."""
    choosing = [node for node in graph if type(node) in _CONDITIONS and not is_fill(node)]
    conditions = {node: only_if for node in choosing for only_if in fills_in(node)}
    for node in _computed_in_cpp(list(conditions)):
        only_if = conditions[node]
        if only_if is None or only_if(node):
            _mark(node)


def fills_in(node: Any) -> list[_If]:
    """The condition of each formula that a node which chooses is like. None stands for no condition."""
    ahead = [ahead for ahead, _ in node.next_functions]
    return [only_if for formula, only_if in FORMULAS[function_of(node.name())] if _are_like(ahead, formula)]


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
    try:
        gc.disable()  # a collection in between would move the new objects, too
        gc.collect(0)
        conditions = [read_saved(node, _CONDITIONS[type(node)]) for node in nodes]
        young = {id(thing) for thing in gc.get_objects(0)}
        return [node for node, condition in zip(nodes, conditions, strict=True) if id(condition) in young]
    finally:
        if was_enabled:
            gc.enable()
