"""Finds out which expressions in the user's source are numbers, and which are tensors.

`2 * x` is a call of PyTorch with x first, so the source alone says which operand is which.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .code import Place
from .source import parsed_file

_NUMBERS_OF = {"item", "size", "numel", "dim", "ndimension", "get", "index", "count", "shape", "ndim"}
"""Methods and attributes that give numbers, also of a tensor."""

_PYTHON = {"len", "int", "float", "abs", "min", "max", "round", "range", "isinstance", "bool", "str", "sum"}
"""Functions of Python that may give numbers, also for a tensor."""


def is_number(text: str, value: Any, place: Place) -> bool:
    """Whether an expression in the file of a call is this number: a literal, or a name that the file binds to it.

    The name may be a variable, an attribute, or an argument: `self.eps` is the number in a class's `eps = 1e-8`.
    """
    if re.fullmatch(r"-?[\d.][\d.e-]*", text):
        return True
    tree = parsed_file(place) if isinstance(value, (int, float)) else None
    if tree is None:
        return False
    return (text.rpartition(".")[2], value) in _numbers(tree) or _is_of_numbers(_parsed(text), _only_numbers(tree))


def _is_literal(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def is_tensor(text: str, place: Place) -> bool:
    """Whether the source shows that an expression in the file of a call is a tensor."""
    tree = parsed_file(place)
    return tree is not None and _is_of_tensors(_parsed(text), _used_as_tensors(tree, place.line))


def is_fixed(text: str, place: Place) -> bool:
    """Whether an expression in the file of a call is the same number each time: it has literals, and names of one."""
    tree, node = parsed_file(place), _parsed(text)
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - {"math"}
    values = [[] if tree is None else _bindings(tree).get(name, []) for name in names]
    is_once = all(len({*map(ast.unparse, filter(None, found))}) == 1 and None not in found for found in values)
    is_number = all(_is_of_numbers(value, frozenset()) for found in values for value in found if value is not None)
    return is_once and is_number and _is_of_numbers(node, frozenset(names))


@functools.lru_cache(256)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_of_numbers(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether an expression computes with numbers alone. The names are those of numbers."""
    if isinstance(node, ast.Call):
        called = node.func
        is_python = isinstance(called, ast.Name) and called.id in ("len", "int", "float")
        return (
            is_python or isinstance(called, ast.Attribute) and (_root(called) == "math" or called.attr in _NUMBERS_OF)
        )
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return all(_is_of_numbers(each, names) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
    if isinstance(node, ast.Attribute):
        return _root(node) == "math" or ast.unparse(node) in ("torch.inf", "torch.nan", "torch.pi", "torch.e")
    return isinstance(node, ast.Constant) or isinstance(node, ast.Name) and node.id in names


def _is_of_tensors(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether an expression computes with a tensor. The names are those of tensors."""
    if isinstance(node, ast.Call):
        called = node.func
        given = any(_is_of_tensors(each, names) for each in node.args)
        if isinstance(called, ast.Name):
            return given and called.id not in _PYTHON
        if not isinstance(called, ast.Attribute) or called.attr in _NUMBERS_OF:
            return False
        return _root(called) in ("torch", "F") or given or _is_of_tensors(called.value, names)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return any(_is_of_tensors(each, names) for each in ast.iter_child_nodes(node))
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        is_size = isinstance(node, ast.Attribute) and node.attr in _NUMBERS_OF
        return not is_size and _is_of_tensors(node.value, names)
    return isinstance(node, ast.Name) and node.id in names


def _root(node: ast.expr) -> str:
    """The first name of `torch.nn.functional.relu`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@functools.lru_cache(256)
def _used_as_tensors(tree: ast.Module, line: int) -> frozenset[str]:
    """The names that the function around a line uses as tensors: by a method, or as the operand of a function."""
    functions = [each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    used = set[str]()
    for node in ast.walk(around[-1] if around else tree):
        if isinstance(node, ast.Attribute) and hasattr(Tensor, node.attr):
            used.add(_root(node) if isinstance(node.value, ast.Name) else "")
        elif isinstance(node, ast.Call) and _root(node.func) in ("torch", "F") and node.args:
            used.add(node.args[0].id if isinstance(node.args[0], ast.Name) else "")
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            is_made = _is_of_tensors(node.value, frozenset())
            used |= {ast.unparse(each) for each in node.targets} if is_made else set()
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            used |= {each.id for each in (node.left, node.right) if isinstance(each, ast.Name)}
    return frozenset(used - {"torch", "F", "nn", "math", "np", "self"})


@functools.lru_cache(8)
def _only_numbers(tree: ast.Module) -> frozenset[str]:
    """The names in a file that get numbers alone: constants, those of a `range`, and other such names."""
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
    given = {ast.unparse(each.target): {"0"} for each in loops if ast.unparse(each.iter).startswith("range(")}
    for name, nodes in _bindings(tree).items():
        texts = {"0" if _is_literal(node) else node.id if isinstance(node, ast.Name) else "" for node in nodes}
        given[name] = given.get(name, set()) | texts
    found = {"0"}
    while more := {n for n, all_ in given.items() if n not in found and all_ & found and all_ <= found | {n}}:
        found |= more
    return frozenset(found)


@functools.lru_cache(8)
def _numbers(tree: ast.Module) -> frozenset[tuple[str, object]]:
    """The names in a file, each with a constant that it gets. A name to which something is added may be a tensor."""
    grown = {ast.unparse(node.target).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    given = ((name, node) for name, nodes in _bindings(tree).items() if name not in grown for node in nodes)
    return frozenset((name, node.value) for name, node in given if isinstance(node, ast.Constant))


@functools.lru_cache(8)
def _bindings(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """By name, the expressions that it gets in a file."""
    found: dict[str, list[ast.expr | None]] = {}
    for name, node in _given(tree):
        found.setdefault(name, []).append(node)
    return found


def _given(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names in a file, each with an expression that it gets: by an assignment, as a default, or in a call.

    The expression is None if it is unknown, as for the parameters of a function that the file does not call.
    """
    nodes = [*ast.walk(tree)]
    functions = {node.name: node.args for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    called = set[str]()
    for node in nodes:
        function = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and (arguments := functions.get(function)):
            called.add(function)
            names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
            yield from zip(names[names[:1] == ["self"] :], node.args, strict=False)
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            for target, value in pairs:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs += zip(target.elts, value.elts, strict=False)
            yield from ((ast.unparse(target).rpartition(".")[2], value) for target, value in pairs)
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).rpartition(".")[2], node.value
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target).rpartition(".")[2], ast.BinOp(node.target, node.op, node.value)
        elif isinstance(node, ast.keyword):
            yield node.arg or "", node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            defaults = zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)
            by_name = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((arg.arg, default) for arg, default in [*defaults, *by_name])
    for name in functions.keys() - called:
        yield from ((each.arg, None) for each in (*functions[name].posonlyargs, *functions[name].args))
