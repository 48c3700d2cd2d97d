"""The expression that called a function, and its operands, as the user wrote them.

Python notes for each instruction from where to where its expression goes in the source.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import linecache
import re
import tokenize
from collections.abc import Iterator, Mapping
from itertools import islice
from types import CodeType
from typing import NamedTuple

from ...functions.numerics import numerics_of
from ...functions.rewrites import OPERATORS
from .code import Place

_MODULES = {"torch", "F", "nn", "functional", "linalg", "special", "math", "np"}
"""Names of modules whose functions get all of their operands as arguments."""


class Expression(NamedTuple):
    """A call in the user's source.

    Attributes:
        node: the call.
        line: the line of source that it is in, without the spaces around it.
        start, end: where the call is in this line, in characters.
        is_whole: whether the line is a whole statement, or its head.
        has_scope: whether the call is in a lambda or a comprehension, with names of its own.
        is_loss: whether a module of a loss is called, as opposed to the function.
    """

    node: ast.expr
    line: str
    start: int
    end: int
    is_whole: bool
    has_scope: bool
    is_loss: bool

    def replaced_by(self, code: str) -> str:
        """The line with other code in place of the call."""
        before, after = self.line[: self.start], self.line[self.end :]
        is_operation = isinstance(ast.parse(code, mode="eval").body, (ast.BinOp, ast.UnaryOp))
        begins = not before or before.rstrip().endswith(("=", "return", "(", ","))
        is_alone = begins and after[:1] in ("", ")", ",")
        return f"{before}({code}){after}" if is_operation and not is_alone else f"{before}{code}{after}"

    def operands(self) -> list[str]:
        """The operands in the order of the function's parameters, as text. Those with a keyword are left out."""
        node = self.node
        if isinstance(node, ast.BinOp):
            return [ast.unparse(node.left), ast.unparse(node.right)]
        if isinstance(node, ast.UnaryOp):
            return [ast.unparse(node.operand)]
        if isinstance(node, ast.Subscript):
            has_slice = any(isinstance(each, ast.Slice) for each in ast.walk(node.slice))  # that is no expression
            return [ast.unparse(node.value), *([] if has_slice else [ast.unparse(node.slice)])]
        if not isinstance(node, ast.Call):
            return []
        given = [ast.unparse(argument) for argument in node.args]
        called = node.func
        if isinstance(called, ast.Attribute) and not self.is_loss:
            owner = ast.unparse(called.value)
            if owner.rpartition(".")[2] not in _MODULES:
                given.insert(0, owner)
        return given


def expression_at(place: Place, name: str) -> Expression | None:
    """The expression of a call; None if its source is not known.

    Args:
        place: the call. If only its line is known, the line must have one call of this function.
        name: the public name of the function.
    """
    is_loss = type(place.module).__module__ == "torch.nn.modules.loss"  # its call has the operands of the function
    return _expression(place.code, place.instruction, place.line, "" if is_loss else name)


def expression_of_module(place: Place, path: str) -> Expression | None:
    """The expression that calls a module of PyTorch; None if it calls another module, which contains this one.

    Args:
        place: the call that the module makes.
        path: the path of the module; empty if no other module contains it.
    """
    if not type(place.module).__module__.startswith("torch.nn.modules."):
        return None
    expression = _expression(place.code, place.instruction, place.line, "")
    called = expression.node.func if expression is not None and isinstance(expression.node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None
    return expression if name is not None and path.rpartition(".")[2] in ("", name) else None


@functools.lru_cache(256)
def _expression(code: CodeType, instruction: int, line: int, name: str) -> Expression | None:
    source = linecache.getline(code.co_filename, line)
    text = _without_comment(source).strip()
    tree = _parsed(text)
    where = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
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
        alone = _parsed(text[start:end])
        node = next(_calls_in(alone or ast.Pass()), ast.expr())
        if not _is_call_of(node, name):
            return None
    scopes = [each for each in ast.walk(tree) if isinstance(each, _SCOPES)] if tree is not None else []
    at = len(text[:start].encode())
    has_scope = any(scope.col_offset <= at < (scope.end_col_offset or 0) for scope in scopes)
    return Expression(node, text, start, end, tree is not None, has_scope, not name)


_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _without_comment(source: str) -> str:
    """A line of source without the comment at its end."""
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(source.lstrip()).readline):
            if token.type == tokenize.COMMENT:
                return source[: len(source) - len(source.lstrip()) + token.start[1]]
    return source


def _parsed(text: str) -> ast.Module | None:
    """A line of source; None if it is not a whole statement, nor the head of one."""
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
        return numerics_of(written).name.strip("_") == name
    if isinstance(node, ast.Subscript):
        return name == "getitem"
    return isinstance(node, (ast.BinOp, ast.UnaryOp)) and OPERATORS.get(type(node.op)) == name


def with_each(line: str, written: Mapping[str, str]) -> str | None:
    """A line with other code in place of each of these expressions; None if it isn't one simple statement."""
    tree = _parsed(line)
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
    nodes = [node for node in ast.walk(_parsed(line) or ast.Pass()) if isinstance(node, ast.expr)]
    return sum(not isinstance(getattr(node, "ctx", None), ast.Store) and ast.unparse(node) == text for node in nodes)


def without_index(expression: Expression, begin: int) -> str:
    """The rest of the line from a character within the sequence of `e[i]` on, without the index."""
    node, text = expression.node, expression.line[expression.start : expression.end]
    assert isinstance(node, ast.Subscript)
    index = expression.start + text.encode()[: node.slice.col_offset].decode().rindex("[")
    return expression.line[begin:index] + expression.line[expression.end :]


def closed(text: str) -> str:
    """An expression, in parentheses if something can't follow it without them."""
    is_closed = isinstance(ast.parse(text, mode="eval").body, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return text if is_closed else f"({text})"


_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.ClassDef)


def is_rebound(text: str, begin: Place, at: int, end: Place) -> bool:
    """Whether an expression may mean another tensor at a later line than at an earlier one of the same function.

    Args:
        text: the expression.
        begin: the earlier call, in whose line the expression begins `at` a character.
        end: the later call.
    """
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    lines = range(min(begin.line, end.line), max(begin.line, end.line))
    source = [linecache.getline(begin.filename, line) for line in lines]
    if source and at:  # statements before it in its line don't matter
        source[0] = source[0].strip()
        source[0] = source[0][source[0].rfind(";", 0, at) + 1 :]
    return any(is_bound(name, line) for name in names for line in source)


def is_bound(name: str, line: str) -> bool:
    """Whether a line gives a name to something, or writes into what has the name. A part of a statement may."""
    tree = _parsed(_without_comment(line).strip())
    if tree is None:
        return re.search(rf"\b{re.escape(name)}\b[^=!<>(\n]*(?:[-+*/@|&]?=(?!=)|\bin\b)", line) is not None
    bound = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    return any(isinstance(each, ast.Name) and each.id == name for node in bound for each in ast.walk(node))


def has_functional(place: Place) -> bool:
    """Whether the source of a call imports `torch.nn.functional` as F."""
    return any("functional as F" in line for line in linecache.getlines(place.filename))
