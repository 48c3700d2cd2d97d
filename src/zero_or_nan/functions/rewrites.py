"""Rewrites, which compute the same in another way or choose where mathematics has no number; and advice.

A rewrite stands in the file of its function, beside the function's numerics. `explain` looks for one that fits the
calls of the reader, runs it on the reader's numbers, and prints it only if it gives the right ones there.
"""

from __future__ import annotations

import ast
from typing import NamedTuple


class Rewrite(NamedTuple):
    """A rewrite.

    Attributes:
        pattern: what it replaces, as an expression. Functions have the names of their numerics; other names stand for
            tensors and numbers.
        code: what replaces it: an expression of the same names, `torch` and `F`.
        choice: what it chooses where there is no number, as a sentence. Empty if it computes the same everywhere.
        of_rounding: whether it is for operands that only rounding has made wrong.
    """

    pattern: ast.expr
    code: str
    choice: str
    of_rounding: bool = False


REWRITES: dict[str, list[Rewrite]] = {}
"""The rewrites of each function, by its name. The first that fits is the best."""

ADVICE: dict[tuple[str, str], tuple[str, str]] = {}
"""Code that is not tried, and the section of the book about it, by the kind of an origin and its function."""

OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.USub: "neg",
}
"""The names of the functions that operators call."""


def rewrite(pattern: str, code: str, choice: str = "", of_rounding: bool = False) -> None:
    """Note a rewrite of the outermost function of a pattern.

    >>> rewrite("log(softmax(x, dim))", "F.log_softmax(x, dim)")
    """
    parsed = ast.parse(pattern, mode="eval").body
    REWRITES.setdefault(function_in(parsed), []).append(Rewrite(parsed, code, choice, of_rounding))


def advice(kind: str, name: str, code: str, section: str) -> None:
    """Note what to do about an origin of a kind, if it is of the function with this name."""
    ADVICE[kind, name] = code, section


def function_in(pattern: ast.expr) -> str:
    """The function that a pattern calls."""
    if isinstance(pattern, ast.Call) and isinstance(pattern.func, ast.Name):
        return pattern.func.id
    if isinstance(pattern, (ast.BinOp, ast.UnaryOp)):
        return OPERATORS[type(pattern.op)]
    raise ValueError(f"{ast.unparse(pattern)} calls no function")


def operands_in(pattern: ast.expr) -> list[ast.expr]:
    """The operands of the function that a pattern calls."""
    if isinstance(pattern, ast.Call):
        return pattern.args
    if isinstance(pattern, ast.BinOp):
        return [pattern.left, pattern.right]
    return [pattern.operand] if isinstance(pattern, ast.UnaryOp) else []
