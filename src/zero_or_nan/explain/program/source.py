"""The user's source: the expression that called a function, its operands, and the names in it.

For each instruction, Python stores where its expression begins and ends in the source. When a call's numbers are
explained, the call's frame is gone, so the source also shows which names are free, and whether a name means the same at
two calls. If the answer is not certain, it is the careful one: the name is taken, or may mean something else.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import linecache
import os
import re
import sys
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from ...functions.numerics import numerics_of
from ...functions.rewrites import OPERATORS
from .code import Place

_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.ClassDef)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WITH = (ast.With, ast.AsyncWith)

_MODULES = {"torch", "F", "nn", "functional", "linalg", "special", "math", "np"}
"""Names of modules whose functions get all their operands as arguments."""


class Expression(NamedTuple):
    """A call in the user's source.

    Attributes:
        node: the call.
        line: the line of source with the call, without the spaces around it.
        start, end: where the call is in this line, in characters.
        is_whole: whether the line is a whole statement, or its head.
        has_scope: whether the call is in a lambda or a comprehension, which has its own names.
        is_conditional: whether the line runs the call only on a condition.
        is_loss: whether the call is of a loss module, as opposed to a loss function.
    """

    node: ast.expr
    line: str
    start: int
    end: int
    is_whole: bool
    has_scope: bool
    is_conditional: bool
    is_loss: bool

    def replaced_by(self, code: str) -> str:
        """The line with other code in place of the call."""
        before, after = self.line[: self.start], self.line[self.end :]
        begins = re.search(r"(^|\breturn|[(,]|[^=!<>]=)\s*$", before) is not None
        is_alone = begins and after[:1] in ("", ")", ",")
        return f"{before}{code if is_alone else closed(code)}{after}"

    def overwrites(self) -> str | None:
        """The tensor that an in-place method overwrites, as text; None for any other call."""
        called = self.node.func if isinstance(self.node, ast.Call) else None
        is_one = isinstance(called, ast.Attribute) and re.search(r"[^_]_$", called.attr) is not None
        owner = ast.unparse(called.value) if is_one and isinstance(called, ast.Attribute) else ""
        return owner if is_one and self.operands()[:1] == [owner] else None

    def operands(self) -> list[str]:
        """The operands in the order of the function's parameters, as text, without keyword arguments."""
        return [*_operands(self.node, self.is_loss)]


@functools.lru_cache(256)
def _operands(node: ast.expr, is_loss: bool) -> tuple[str, ...]:
    if isinstance(node, ast.BinOp):
        return ast.unparse(node.left), ast.unparse(node.right)
    if isinstance(node, ast.UnaryOp):
        return (ast.unparse(node.operand),)
    if isinstance(node, ast.Subscript):
        has_slice = any(isinstance(each, ast.Slice) for each in ast.walk(node.slice))  # that is no expression
        return ast.unparse(node.value), *(() if has_slice else (ast.unparse(node.slice),))
    if not isinstance(node, ast.Call):
        return ()
    given = [ast.unparse(argument) for argument in node.args]
    called = node.func
    if isinstance(called, ast.Attribute) and not is_loss:
        owner = ast.unparse(called.value)
        if owner.rpartition(".")[2] not in _MODULES:
            given.insert(0, owner)
    return tuple(given)


def expression_at(place: Place, name: str) -> Expression | None:
    """The expression of a call of a function, by its public name; None if the source is unknown.

    If only the line of the call is known, the line must contain exactly one call of this function.
    """
    is_loss = type(place.module).__module__ == "torch.nn.modules.loss"  # its call has the operands of the function
    return _expression(place.code, place.instruction, place.line, "" if is_loss else name)


def has_call(place: Place, name: str) -> bool:
    """Whether the line of a call has a call of this function. True if the line can't be parsed by itself."""
    tree = parsed(_without_comment(linecache.getline(place.filename, place.line)).strip())
    return tree is None or any(_is_call_of(node, name) for node in _calls_in(tree))


def _position(code: CodeType, instruction: int) -> tuple[int | None, ...]:
    """The first and last line, and the first and last column, of the expression of an instruction."""
    return next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)


@functools.lru_cache(256)
def _expression(code: CodeType, instruction: int, line: int, name: str) -> Expression | None:
    source = linecache.getline(code.co_filename, line)
    text = _without_comment(source).strip()
    tree = parsed(text)
    where = _position(code, instruction)
    if where[2] is None or where[3] is None:
        found = [] if tree is None else [node for node in _calls_in(tree) if _is_call_of(node, name)]
        if len(found) != 1:
            return None
        (node,), start, end = found, found[0].col_offset, found[0].end_col_offset or 0
        start, end = (len(text.encode()[:at].decode(errors="ignore")) for at in (start, end))
    else:
        if where[0] != where[1] or where[0] != line:
            return None
        indent = len(source) - len(source.lstrip())
        start, end = (len(source.encode()[:at].decode(errors="ignore")) - indent for at in where[2:])
        alone = parsed(text[start:end])
        node = next(_calls_in(alone or ast.Pass()), ast.expr())
        if not _is_call_of(node, name):
            return None
    at = len(text[:start].encode())

    def is_in(*kinds: type[ast.expr]) -> bool:
        found = [each for each in ast.walk(tree) if isinstance(each, kinds)] if tree is not None else []
        return any(each.col_offset <= at < (each.end_col_offset or 0) for each in found)

    return Expression(node, text, start, end, tree is not None, is_in(*_SCOPES), is_in(ast.IfExp, ast.BoolOp), not name)


def _without_comment(source: str) -> str:
    """A line of source without the comment at its end."""
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(source.lstrip()).readline):
            if token.type == tokenize.COMMENT:
                return source[: len(source) - len(source.lstrip()) + token.start[1]]
    return source


def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a line; None if it is neither a whole statement nor the head of a statement."""
    for whole in (text, f"{text} pass"):
        with contextlib.suppress(SyntaxError):
            return ast.parse(whole)
    return None


def _calls_in(tree: ast.AST) -> Iterator[ast.expr]:
    """The calls and operations, the outermost first."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript)):
            yield node


def _is_call_of(node: ast.expr, name: str) -> bool:
    """Whether this is a call by a name, or an operation that has the name. Without a name, it is any call."""
    if isinstance(node, ast.Call) and not name:
        return True
    if isinstance(node, ast.Call):
        written = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        return numerics_of(written).name.strip("_") in (name, name.removeprefix("linalg_").removeprefix("special_"))
    if isinstance(node, ast.Subscript):
        return name == "getitem"
    return isinstance(node, (ast.BinOp, ast.UnaryOp)) and OPERATORS.get(type(node.op)) == name


def can_run_twice(text: str) -> bool:
    """Whether an expression has the same value a second time: it only calls functions of PyTorch that are not random.

    >>> [can_run_twice(text) for text in ("(x - y).exp()[0]", "x.bernoulli()", "x.add_(1)", "self.norm(x)", "f(x)")]
    [True, False, False, False, False]
    """
    return all(_repeats(node) for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Call))


def _repeats(node: ast.Call) -> bool:
    called = node.func
    if not isinstance(called, ast.Attribute) or isinstance(called.value, ast.Name) and called.value.id == "self":
        return False  # a function or a module of the user's
    packet = getattr(torch.ops.aten, called.attr, None)
    tags = [] if packet is None else getattr(packet, packet.overloads()[0]).tags
    return packet is not None and torch.Tag.nondeterministic_seeded not in tags and not called.attr.endswith("_")


def with_each(line: str, written: Mapping[str, str]) -> str | None:
    """A line with other code in place of each of these expressions; None if it isn't one simple statement."""
    tree = parsed(line)
    if tree is None or len(tree.body) != 1 or isinstance(tree.body[0], _COMPOUND):
        return None
    found: list[ast.expr] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            is_read = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store)
            if is_read and ast.unparse(node) in written:
                found.append(node)  # type: ignore[arg-type]
            else:
                waiting.append(node)
    code = line.encode()
    for node in sorted(found, key=lambda node: -node.col_offset):
        code = code[: node.col_offset] + written[ast.unparse(node)].encode() + code[node.end_col_offset :]
    return code.decode()


def reads(line: str, text: str) -> int:
    """How often a line reads an expression."""
    nodes = [node for node in ast.walk(parsed(line) or ast.Pass()) if isinstance(node, ast.expr)]
    return sum(not isinstance(getattr(node, "ctx", None), ast.Store) and ast.unparse(node) == text for node in nodes)


def without_index(expression: Expression, begin: int) -> str:
    """The rest of the line from the character at `begin`, inside the `e` of `e[i]`, without the index."""
    node, text = expression.node, expression.line[expression.start : expression.end]
    assert isinstance(node, ast.Subscript)
    index = expression.start + text.encode()[: node.slice.col_offset].decode().rindex("[")
    return expression.line[begin:index] + expression.line[expression.end :]


def with_each_in(expressions: Sequence[Expression | None], written: Mapping[str, str]) -> str | None:
    """The line of some expressions, with parts replaced inside these expressions, and nowhere else."""
    known = [each for each in expressions if each is not None]
    if not known or len(known) < len(expressions):
        return None
    line, changed = known[0].line, len(known[0].line)
    for each in sorted(known, key=lambda each: (-each.end, each.start)):  # of nested ones, the outer one is the first
        part = with_each(each.line[each.start : each.end], written) if each.end <= changed else ""
        if part is None:
            return None
        if part:
            line, changed = line[: each.start] + part + line[each.end :], each.start
    return line


def closed(text: str) -> str:
    """An expression, in parentheses if something can't follow it without them."""
    is_closed = isinstance(ast.parse(text, mode="eval").body, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return text if is_closed else f"({text})"


# The names in the source.


def free_name(wanted: str, place: Place) -> str:
    """The wanted name, with underscores added until nothing in the file of a call, or among its variables, has it.

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
    found = [node for node in ast.walk(parsed_file(place) or ast.Pass()) if "F" in _binds(node)]
    return bool(found) and all(ast.unparse(node).endswith("functional as F") for node in found)


def lacks_torch(place: Place) -> bool:
    """Whether the file of a call has no name `torch`. A cell of a notebook may have it from another cell.

    A file that uses the name has it, even if no statement shows from where: `from common import *`.
    """
    tree = parsed_file(place) if os.path.isfile(place.filename) else None
    if tree is None or any(isinstance(node, ast.Name) and node.id == "torch" for node in ast.walk(tree)):
        return False
    return "torch" not in {name.partition(".")[0] for name in set().union(*map(_binds, ast.walk(tree)))}


def can_come_before(place: Place) -> bool:
    """Whether a line can be written before a call's line, so that it runs whenever the call's line runs."""
    around = _around(place)
    if not around or isinstance(around[-1].statement, ast.While):  # its head runs several times
        return False
    statement, line = around[-1].statement, linecache.getline(place.filename, place.line)
    is_first = statement.lineno == place.line and not line.encode()[: statement.col_offset].strip()
    return is_first and not line.lstrip().startswith("elif")


def after_bindings(names: Collection[str], place: Place) -> ast.stmt | None:
    """The first statement before a call at which all these variables already have their values from the call.

    None if a line can't be written before this statement.
    """
    around, wanted = _around(place), set(names)
    found: ast.stmt | None = None
    for outer, (statement, block) in zip([None, *around], around, strict=False):
        owner = None if outer is None else outer.statement
        before = block[: block.index(statement)]
        last = max((at for at, each in enumerate(before) if wanted & _bound(each)), default=-1)
        if last >= 0:
            found = block[last + 1] if isinstance(before[last], (ast.Assign, ast.AnnAssign)) else None
        elif isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = block[0] if wanted & _bound_by(owner.args) else None
        elif isinstance(owner, (ast.For, ast.AsyncFor)) and wanted & _bound_by(owner.target):
            found = block[0]
    line = "" if found is None else linecache.getline(place.filename, found.lineno)
    return None if found is None or line.encode()[: found.col_offset].strip() else found


def is_rebound(text: str, begin: Place, end: Place) -> bool:
    """Whether an expression may mean another tensor at the call `end` than at the last call from `begin` before it.

    It means the same tensor if each path to the call leads through the earlier call, and if nothing on these paths
    binds a name of the expression.
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
    everywhere = ast.walk(parsed_file(begin) or ast.Pass()) if between else ()
    for_others = (node.names for node in everywhere if isinstance(node, (ast.Global, ast.Nonlocal)))
    return not names.isdisjoint(bound.union(*for_others))


def _calls_one_of(names: set[str], node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return isinstance(owner, ast.Name) and (owner is node.func or owner.id in names)


class _Around(NamedTuple):
    """A statement around a call, and the statements of its block."""

    statement: ast.stmt
    block: list[ast.stmt]


def _around(place: Place) -> list[_Around]:
    """The statements around a call, the outermost first; empty if the source is not known."""
    line, _, column, _ = _position(place.code, place.instruction)
    at = line or place.line, column
    found: list[_Around] = []
    node: ast.AST | None = parsed_file(place)
    while node is not None:
        blocks = [list(_flat(block)) for block in _blocks(node)]
        inner = [_Around(each, block) for block in blocks for each in block if _contains(each, *at)][-1:]
        found += inner
        node = None if not inner or isinstance(inner[0].statement, _WITH) else inner[0].statement
    return found


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


def _bound_by(node: ast.AST) -> set[str]:
    return {name for each in ast.walk(node) for name in _binds(each)}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose contents it changes."""
    parts = statement.items if isinstance(statement, _WITH) else [statement]
    return set().union(*map(_bound_by, parts))


def _binds(node: ast.AST) -> set[str]:
    if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if isinstance(node, ast.alias):
        return {node.asname or node.name}
    name = node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
    return {name} if isinstance(name, str) else set()


def _source(place: Place) -> str:
    return "".join(linecache.getlines(place.filename))


def parsed_file(place: Place) -> ast.Module | None:
    """The syntax tree of a call's file; None if its source is unknown."""
    return _parsed(_source(place))


@functools.lru_cache(8)
def _parsed(source: str) -> ast.Module | None:
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(source)
    return None
