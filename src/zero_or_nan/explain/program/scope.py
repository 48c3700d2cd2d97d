"""The names in the user's source: which of them are free, and whether they mean the same at two calls.

The frame of a call is gone when its numbers are explained, so the source answers. An answer that it can't give with
certainty is the careful one: the name is taken, or it may mean something else.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import NamedTuple

from .code import Place


def free_name(wanted: str, place: Place) -> str:
    """The name, with underscores behind it until nothing in the file of a call, or among its variables, has it.

    The whole file counts: a cell, or a module, shares its variables with all functions in it.
    """
    code = place.code
    taken = {*re.findall(r"\w+", _source(place)), *code.co_names, *code.co_varnames}
    taken |= {*code.co_cellvars, *code.co_freevars}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == place.filename:
            taken |= frame.f_globals.keys()
        frame = frame.f_back
    while wanted in taken:
        wanted += "_"
    return wanted


def has_functional(place: Place) -> bool:
    """Whether F is `torch.nn.functional`, and nothing else, in the file of a call."""
    found = [node for node in ast.walk(_tree(_source(place)) or ast.Pass()) if "F" in _binds(node)]
    return bool(found) and all(ast.unparse(node).endswith("functional as F") for node in found)


def can_come_before(place: Place) -> bool:
    """Whether a line can be written in front of a call's line, and runs whenever this line does."""
    around = _around(place)
    if not around or isinstance(around[-1].statement, ast.While):  # its head runs several times
        return False
    statement, line = around[-1].statement, linecache.getline(place.filename, place.line)
    is_first = statement.lineno == place.line and not line.encode()[: statement.col_offset].strip()
    return is_first and not line.lstrip().startswith("elif")


def is_rebound(text: str, begin: Place, end: Place) -> bool:
    """Whether an expression may mean another tensor at a call than it meant at the last call before it from `begin`.

    It means the same if each way to the call leads through the earlier one, and nothing on the way from there binds a
    name of the expression.
    """
    one, other = _around(begin), _around(end)
    if not one or not other:
        return begin.line != end.line
    *outer, (statement, block) = one
    inner = other[len(outer) :]
    first = block.index(statement)
    last = block.index(inner[0].statement) if inner and inner[0].statement in block else -1
    if last < first:
        return True  # the earlier call is in another loop or branch, or comes later in a loop that both are in
    between = block[first : last if last > first or len(inner) == 1 else last + 1]
    for at, around in enumerate(inner):
        if isinstance(around.statement, (ast.For, ast.AsyncFor, ast.While)):
            between.append(around.statement)  # a later turn comes after all of it
            break
        if at:
            between += around.block[: around.block.index(around.statement)]
    parts = [*ast.walk(ast.parse(text, mode="eval"))]
    names = {node.id for node in parts if isinstance(node, ast.Name)}
    is_inside = any(isinstance(node, (ast.Attribute, ast.Subscript)) for node in parts)
    if is_inside and any(_calls_one_of(names, node) for each in between for node in ast.walk(each)):
        return True  # a function, or a method of the object, may change what is in the object
    bound = {name for each in between for name in _bound(each)}
    return not names.isdisjoint(bound | (_bound_elsewhere(begin) if between else set()))


def _calls_one_of(names: set[str], node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return isinstance(owner, ast.Name) and (owner is node.func or owner.id in names)


def _bound_elsewhere(place: Place) -> set[str]:
    """The names that a function in the file of a call binds for others."""
    nodes = ast.walk(_tree(_source(place)) or ast.Pass())
    return {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}


class _Around(NamedTuple):
    """A statement around a call, and the statements of its block."""

    statement: ast.stmt
    block: list[ast.stmt]


def _around(place: Place) -> list[_Around]:
    """The statements around a call, the outermost first; empty if the source is not known."""
    line, _, column, _ = next(islice(place.code.co_positions(), place.instruction // 2, None), (None,) * 4)
    at = line or place.line, column
    found: list[_Around] = []
    node: ast.AST | None = _tree(_source(place))
    while node is not None:
        blocks = [list(_flat(block)) for block in _blocks(node)]
        inner = [_Around(each, block) for block in blocks for each in block if _contains(each, *at)][-1:]
        found += inner
        node = None if not inner or isinstance(inner[0].statement, _WITH) else inner[0].statement
    return found


_WITH = ast.With, ast.AsyncWith


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for owner in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        for field in ("body", "orelse", "finalbody"):
            yield getattr(owner, field, [])


def _flat(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, with those in a `with`, which always run."""
    for each in block:
        yield each
        if isinstance(each, _WITH):
            yield from _flat(each.body)


def _contains(node: ast.stmt, line: int, column: int | None) -> bool:
    end = node.end_lineno or 0, node.end_col_offset or 0
    return node.lineno <= line <= end[0] and (column is None or (node.lineno, node.col_offset) <= (line, column) < end)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose contents it changes."""
    parts = statement.items if isinstance(statement, _WITH) else [statement]
    return {name for part in parts for node in ast.walk(part) for name in _binds(node)}


def _binds(node: ast.AST) -> set[str]:
    if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if isinstance(node, ast.alias):
        return {node.asname or node.name}
    name = node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
    return {name} if isinstance(name, str) else set()


def _source(place: Place) -> str:
    return "".join(linecache.getlines(place.filename))


@functools.lru_cache(8)
def _tree(source: str) -> ast.Module | None:
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(source)
    return None
