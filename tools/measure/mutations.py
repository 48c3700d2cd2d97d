"""The mutations of a cell's code. Each replaces one number, text, operator or argument.

Everything else keeps its line, because tracebacks and reports show lines of the code. So a mutation replaces a piece of
the text, and Python's `ast` only says where the pieces are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

OPERATORS: dict[type[ast.AST], tuple[bytes, bytes]] = {
    ast.Add: (b"+", b"-"),
    ast.Sub: (b"-", b"+"),
    ast.Mult: (b"*", b"/"),
    ast.Div: (b"/", b"*"),
    ast.FloorDiv: (b"//", b"*"),
    ast.Mod: (b"%", b"*"),
    ast.Pow: (b"**", b"*"),
    ast.MatMult: (b"@", b"+"),
    ast.BitAnd: (b"&", b"|"),
    ast.BitOr: (b"|", b"&"),
    ast.And: (b"and", b"or"),
    ast.Or: (b"or", b"and"),
    ast.Eq: (b"==", b"!="),
    ast.NotEq: (b"!=", b"=="),
    ast.Lt: (b"<", b">="),
    ast.LtE: (b"<=", b">"),
    ast.Gt: (b">", b"<="),
    ast.GtE: (b">=", b"<"),
    ast.Is: (b"is", b"is not"),
    ast.In: (b"in", b"not in"),
}
"""How each operator is written, and what replaces it."""

Place = tuple[int, int]
"""A line, counted from 1, and a column in bytes."""
Change = tuple[Place, Place, Callable[[bytes], bytes]]
"""Where a piece of the text begins and ends, and what replaces the piece."""


def mutations(source: str) -> list[str]:
    """The code with one change, for each number, text, operator and argument that can be replaced.

    Raises:
        SyntaxError: if Python can't parse the code.

    >>> mutations("print(x < 7)")
    ['print(None)', 'print(x >= 7)', 'print(x < 8)']
    """
    text = source.encode()  # ast counts columns in bytes
    starts = [0, *accumulate(len(line) + 1 for line in text.split(b"\n"))]
    changed = []
    for (line, column), (last_line, last_column), replaced in _changes(ast.parse(source)):
        begin, end = starts[line - 1] + column, starts[last_line - 1] + last_column
        old = text[begin:end]
        new = replaced(old)
        new += b"\n" * (old.count(b"\n") - new.count(b"\n"))
        changed.append((text[:begin] + new + text[end:]).decode())
    return changed


def _changes(node: ast.AST) -> Iterator[Change]:
    """Every change of a piece of the text."""
    match node:
        case ast.Constant(value=bool(value)):
            yield _begin(node), _end(node), _to(not value)
        case ast.Constant(value=int(value)):
            yield _begin(node), _end(node), _to(value + 1)
        case ast.Constant(value=float(value)):
            yield _begin(node), _end(node), _to(2 * value + 1)
        case ast.Constant(value=str(value)):
            yield _begin(node), _end(node), _to(f"XX{value}")
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield _begin(node), _begin(operand), _to()
        case ast.BinOp(left=left, op=op, right=right):
            yield from _operator(left, op, right)
        case ast.BoolOp(op=op, values=values):
            for left, right in pairwise(values):
                yield from _operator(left, op, right)
        case ast.Compare(left=first, ops=ops, comparators=others):
            for (left, right), comparison in zip(pairwise([first, *others]), ops, strict=True):
                yield from _operator(left, comparison, right)
        case ast.AugAssign(target=target, op=op, value=value):
            yield from _operator(target, op, value)
        case ast.Call(args=args, keywords=keywords):
            for argument in [*args, *(keyword.value for keyword in keywords)]:
                if not isinstance(argument, ast.Starred):
                    yield _begin(argument), _end(argument), _to(None)
        case ast.JoinedStr():
            return  # before Python 3.12, ast doesn't say where the parts of an f-string are
    for child in ast.iter_child_nodes(node):
        yield from _changes(child)


def _operator(left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Change]:
    """The operator is in the text between its operands."""
    if pair := OPERATORS.get(type(operator)):
        yield _end(left), _begin(right), lambda old: old.replace(*pair, 1)


def _to(*values: object) -> Callable[[bytes], bytes]:
    """Replace the piece by a value, or by nothing."""
    new = "".join(map(repr, values)).encode()
    return lambda old: new


def _begin(node: ast.expr) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
