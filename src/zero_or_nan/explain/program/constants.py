"""Finds out which names in the user's source are numbers."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

from .code import Place
from .source import parsed_file


def is_number(text: str, value: Any, place: Place) -> bool:
    """Whether an expression in the file of a call is this number: a literal, or a name that the file binds to it.

    The name may be a variable, an attribute, or an argument: `self.eps` is the number in a class's `eps = 1e-8`.
    """
    if re.fullmatch(r"-?[\d.][\d.e-]*", text):
        return True
    tree = parsed_file(place) if isinstance(value, (int, float)) else None
    if tree is None:
        return False
    return (text.rpartition(".")[2], value) in _numbers(tree) or _is_arithmetic(text, tree)


@functools.lru_cache(256)
def _is_arithmetic(text: str, tree: ast.Module) -> bool:
    """Whether an expression computes with numbers alone, such as the counter of a loop."""
    nodes = [*ast.walk(ast.parse(text, mode="eval").body)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return all(isinstance(node, _OF_NUMBERS) for node in nodes) and names <= _only_numbers(tree)


_OF_NUMBERS = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


@functools.lru_cache(8)
def _only_numbers(tree: ast.Module) -> frozenset[str]:
    """The names in a file that get numbers alone: constants, those of a `range`, and other such names."""
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
    given = {ast.unparse(each.target): {"0"} for each in loops if ast.unparse(each.iter).startswith("range(")}
    for name, node in _given(tree):
        is_number = isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
        given.setdefault(name, set()).add("0" if is_number else node.id if isinstance(node, ast.Name) else "")
    found = {"0"}
    while more := {n for n, all_ in given.items() if n not in found and all_ & found and all_ <= found | {n}}:
        found |= more
    return frozenset(found)


@functools.lru_cache(8)
def _numbers(tree: ast.Module) -> frozenset[tuple[str, object]]:
    """The names in a file, each with a constant that it gets."""
    return frozenset((name, node.value) for name, node in _given(tree) if isinstance(node, ast.Constant))


def _given(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names in a file, each with an expression that it gets: by an assignment, as a default, or in a call."""
    nodes = [*ast.walk(tree)]
    functions = {node.name: node.args for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in nodes:
        if isinstance(node, ast.Call) and (arguments := functions.get(ast.unparse(node.func).rpartition(".")[2])):
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
        elif isinstance(node, ast.keyword):
            yield node.arg or "", node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            defaults = zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)
            by_name = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((arg.arg, default) for arg, default in [*defaults, *by_name])
