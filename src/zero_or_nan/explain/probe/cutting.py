"""A loss as a function, cut out of code that computes the loss and calls backward in the same block.

Many scripts have `loss = …` and `loss.backward()` in one loop. The function has the statements of this block that the
loss is computed by. Tensors without a graph are its inputs, and all other variables keep their values.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..program.tensors import tensors_in


class CutOut(NamedTuple):
    """A loss that was cut out: a function, its inputs, and its code."""

    function: Any
    inputs: tuple[Any, ...]
    code: str


def cut_out(frame: FrameType, graph: Any) -> CutOut | None:
    """The loss whose backward pass a line of the user's has just begun; None if that line can't be read.

    Args:
        frame: that of the line.
        graph: the nodes of the loss.
    """
    filename, values = frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
    try:
        tree = ast.parse("".join(linecache.getlines(filename, frame.f_globals)))
    except SyntaxError:  # a cell with magic commands
        return None
    block = _block_at(tree.body, frame.f_lineno)
    if not block:
        return None
    *before, last = block
    losses = {each.id: each for each in _names(last) if _is_loss(values.get(each.id), graph)}
    called = last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    loss = called.value if isinstance(called, ast.Attribute) and called.attr == "backward" else None
    loss = next(iter(losses.values())) if len(losses) == 1 else loss  # a GradScaler multiplies it
    if loss is None:
        return None
    body: list[ast.stmt] = [ast.copy_location(ast.Return(loss), last)]
    wanted = {each.id for each in _names(loss) if _is_computed(values.get(each.id))}
    for statement in reversed(before):
        if wanted & {each.id for each in _names(statement, ast.Store)}:
            body.insert(0, statement)
            wanted |= {each.id for each in _names(statement) if _is_computed(values.get(each.id))}
    stored = {each.id for part in body for each in _names(part, ast.Store)}
    loaded = dict.fromkeys(each.id for part in body for each in _names(part) if each.id not in stored)
    if any(_is_computed(values.get(name)) for name in loaded):  # by a caller
        return None
    inputs = {name: values[name] for name in loaded if _is_input(values.get(name))}
    name = "loss_fn"
    while name in values:  # nn.CrossEntropyLoss() is often called so
        name += "_"
    header: Any = ast.parse(f"def {name}({', '.join(inputs)}): pass").body[0]
    header.body = body
    code = compile(ast.fix_missing_locations(ast.Module([header], [])), filename, "exec")
    exec(code, values)
    return CutOut(values[name], (*inputs.values(),), ast.unparse(header))


def _block_at(statements: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements of the innermost block up to the one at a line; empty if there is none."""
    for number, statement in enumerate(statements):
        if statement.lineno <= line <= (statement.end_lineno or 0):
            blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(statement, "handlers", [])]
            inner = next(filter(None, (_block_at(block, line) for block in blocks)), None)
            return inner or [*statements[: number + 1]]
    return []


def _names(tree: ast.AST, context: type[ast.expr_context] = ast.Load) -> Iterator[ast.Name]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context))


def _is_loss(thing: Any, graph: Any) -> bool:
    return isinstance(thing, Tensor) and thing.numel() == 1 and thing.grad_fn in graph


def _is_computed(thing: Any) -> bool:
    return any(tensor.grad_fn is not None for tensor in tensors_in(thing))


def _is_input(thing: Any) -> bool:
    tensors = tensors_in(thing)
    return bool(tensors) and not any(isinstance(each, nn.Parameter) for each in tensors)
