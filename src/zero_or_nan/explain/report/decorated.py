"""Runs one of the user's functions in float64, by a decorator. This is the last way that is tried.

A number may be lost in one line and be needed in another, so that no line or call alone repairs the formula. The calls
that ran in the function run again in float64, and the others as before. The innermost function that is enough gets the
decorator.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from types import CodeType

import torch

from ..births.call import Call
from ..program.source import parsed_file
from .again import Again, Program, agree, once_more

_NEAR = 1e-3
"""The largest relative error of the loss and of each gradient."""

_CODE = """\
# the last resort: float64 in this function, which is slow on most GPUs.
# Tried on your numbers: {}
from zero_or_nan import in_float64

@in_float64()
{}"""


def in_float64(failed: Call, program: Program) -> tuple[str, int, None] | None:
    """A function's first line behind a decorator, and the number of this line; None if no function is enough."""
    if program.right is None or not program.has_digits:
        return None
    for code in reversed(_around(failed, program)):
        head = _head(code, failed) if code.co_filename == failed.place.filename else None
        inside = [at for at, (_, call) in enumerate(program.calls) if code in _around(call, program)]
        if head is not None and agree(_in_float64(program, inside), program.right, _NEAR):
            text, line = head
            return _CODE.format(program.right.told, text), line, None
    return None


def _around(call: Call, program: Program) -> tuple[CodeType, ...]:
    """The user's functions during which a call ran, the outermost first."""
    return (*program.callers.get(call.place.code, ()), call.place.code)


def _in_float64(program: Program, inside: list[int]) -> Again | None:
    """The loss and its gradients if some calls run in float64; None if another number then decides what code runs."""
    plain, found = once_more(program), once_more(program, dtype=torch.float64, only=frozenset(inside))
    if plain is None or found is None:
        return None
    read = {id(each) for _, call in program.calls for each in call.tensors()}
    decisions = found.decisions.keys() - read
    return found if all(torch.equal(found.decisions[key], plain.decisions[key]) for key in decisions) else None


def _head(code: CodeType, failed: Call) -> tuple[str, int] | None:
    """The line in which a function begins, and its number; None if it is no function that may get a decorator."""
    nodes = [node for node in ast.walk(parsed_file(failed.place) or ast.Pass()) if isinstance(node, ast.FunctionDef)]
    node = next((each for each in nodes if code.co_name == each.name and code.co_firstlineno == _first(each)), None)
    if node is None or code.co_flags & inspect.CO_GENERATOR:
        return None
    return linecache.getline(code.co_filename, node.lineno).strip(), node.lineno


def _first(node: ast.FunctionDef) -> int:
    return min(each.lineno for each in (node, *node.decorator_list))
