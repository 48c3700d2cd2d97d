"""The expression that called a function, and its operands, as the user wrote them.

Python notes for each instruction from where to where its expression goes in the source.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from itertools import islice
from typing import NamedTuple

from .code import Place

_MODULES = {"torch", "F", "nn", "functional", "linalg", "special", "math", "np"}
"""Names of modules whose functions get all of their operands as arguments."""


class Expression(NamedTuple):
    """A call in the user's source.

    Attributes:
        node: the call.
        statement: the line of the statement around it, if the statement has one line; else empty.
        start, end: where the call is in this line, in characters.
    """

    node: ast.expr
    statement: str
    start: int
    end: int

    def replaced_by(self, code: str) -> str:
        """The statement with other code in place of the call."""
        before, after = self.statement[: self.start], self.statement[self.end :]
        around = before.rstrip()[-1:] + after.lstrip()[:1]
        is_alone = around in ("", "=", "()") or before.rstrip().endswith(("=", "return", "(", ",")) and after[:1] != "."
        needs_none = is_alone or not isinstance(ast.parse(code, mode="eval").body, (ast.BinOp, ast.UnaryOp))
        return f"{before}{code if needs_none else f'({code})'}{after}".strip()

    def operands(self) -> list[str]:
        """The operands in the order of the function's parameters, as text. Those with a keyword are left out."""
        node = self.node
        if isinstance(node, ast.BinOp):
            return [ast.unparse(node.left), ast.unparse(node.right)]
        if isinstance(node, ast.UnaryOp):
            return [ast.unparse(node.operand)]
        if isinstance(node, ast.Call):
            given = [ast.unparse(argument) for argument in node.args]
            if isinstance(node.func, ast.Attribute) and not _is_of_module(node.func.value):
                given.insert(0, ast.unparse(node.func.value))
            return given
        return []

    def calls(self, name: str) -> bool:
        """Whether this is a call by a name, or an operator."""
        if isinstance(self.node, ast.Call):
            written = self.node.func.attr if isinstance(self.node.func, ast.Attribute) else ast.unparse(self.node.func)
            return written.strip("_") == name
        return isinstance(self.node, (ast.BinOp, ast.UnaryOp))


def _is_of_module(value: ast.expr) -> bool:
    return ast.unparse(value).rpartition(".")[2] in _MODULES


@functools.lru_cache(256)
def expression_at(place: Place) -> Expression | None:
    """The expression of a call; None if its source is not known."""
    line, end_line, start, end = next(islice(place.code.co_positions(), place.instruction // 2, None), (None,) * 4)
    if line is None or end_line != line or start is None or end is None:
        return None
    text = linecache.getline(place.filename, line)
    start, end = (len(text.encode()[:at].decode(errors="ignore")) for at in (start, end))
    try:
        node = ast.parse(text[start:end].strip(), mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Call)):
        return None
    try:
        ast.parse(text.strip())
    except SyntaxError:  # a part of a longer statement
        text = ""
    return Expression(node, text.rstrip(), start, end)


def is_rebound(text: str, begin: Place, end: Place) -> bool:
    """Whether an expression may mean another tensor at a later line than at an earlier one of the same function."""
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    lines = range(min(begin.line, end.line), max(begin.line, end.line))
    source = [linecache.getline(begin.filename, line) for line in lines]
    call = expression_at(begin)
    if source and call is not None:  # statements before it in its line don't matter
        source[0] = source[0][source[0].rfind(";", 0, call.start) + 1 :]
    name = "|".join(map(re.escape, names)) or "$^"
    binds = re.compile(rf"\b(?:{name})\b[^=!<>(\n]*(?:[-+*/@|&]?=(?!=)|\bin\b)")
    return any(map(binds.search, source))
