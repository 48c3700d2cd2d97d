"""A loss as a function that is cut out of a script: the statements before `loss.backward()` that compute the loss.

Many scripts have `loss = …` and `loss.backward()` in one loop, without a function that returns the loss. The inputs of
the new function are the tensors without a graph that the loop sets, except those that it computes from other inputs.
All other variables keep their values.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..program.tensors import tensors_in

_PLAIN = re.compile(r"\w+(\.\w+)+")
"""Matches an attribute of a variable."""

_CHANGING = re.compile(r"\w*[^_]_|append|extend|insert|update|add|setdefault")
"""Matches methods that change their object: in-place functions of PyTorch, and those that put something into a list."""


def cut_out(frame: FrameType, graph: Any) -> tuple[Callable[..., Any], tuple[Any, ...], str, Tensor] | None:
    """A function that computes a loss whose backward pass has just begun, with its inputs, its code, and the loss.

    Args:
        frame: the frame of the line that began the pass. If the line can't be read, the result is None.
        graph: the nodes of the loss.
    """
    filename, values = frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
    try:
        tree = ast.parse("".join(linecache.getlines(filename, frame.f_globals)))
    except SyntaxError:  # a cell with magic commands
        return None
    block = _block_at(tree.body, _position(frame))
    if not block:
        return None
    *before, last = block
    own = _set_in_loop(tree, frame.f_lineno)
    loss = _loss_in(last, values, graph)
    if loss is None:
        return None
    reads = {name: _tensors_read_for(name, before, values) for name in own if _is_input(values.get(name))}
    of_others = {name for name, read in reads.items() if read & own}
    of_others_alone = {name for name in of_others if reads[name] <= own}
    for derived in (of_others, of_others_alone, set[str]()):  # of x = data[at], x is of use as an input, and not `at`
        body = _body(loss, last, before, values, derived)
        loaded = _loaded(body)
        inputs = {name: values[name] for name in loaded if _is_input(values.get(name))}
        inputs = {name: value for name, value in inputs.items() if name in own} or inputs  # others are constants
        if any(not _is_index(each) for value in inputs.values() for each in tensors_in(value)):
            break
    is_known = len(body) == 1 and isinstance(loss, (ast.Name, ast.Attribute, ast.Subscript))
    if not body or is_known or any(_is_computed(values.get(name)) for name in loaded):  # by a caller
        return None
    found = _the_loss(loss, values)
    name = "loss_fn"
    while name in values:  # nn.CrossEntropyLoss() is often called so
        name += "_"
    header: Any = ast.parse(f"def {name}({', '.join(inputs)}): pass").body[0]
    header.body = body
    code = compile(ast.fix_missing_locations(ast.Module([header], [])), filename, "exec")
    exec(code, values)
    return values[name], (*inputs.values(),), ast.unparse(header), found


def _loss_in(last: ast.stmt, values: Any, graph: Any) -> ast.expr | None:
    """The loss in a statement that begins a backward pass."""
    losses = {each.id: each for each in _names(last) if _is_loss(values.get(each.id), graph)}
    if len(losses) == 1:  # a GradScaler may multiply it
        return next(iter(losses.values()))
    called = last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    return called.value if isinstance(called, ast.Attribute) and called.attr == "backward" else None


def _body(loss: ast.expr, last: ast.stmt, before: Sequence[ast.stmt], values: Any, derived: set[str]) -> list[ast.stmt]:
    """The statements that compute a loss, and the `derived` tensors, from the others; empty if one is missing."""

    def is_wanted(name: str) -> bool:
        return name in derived or _is_computed(values.get(name))

    body: list[ast.stmt] = [ast.copy_location(ast.Return(loss), last)]
    wanted = {each.id for each in _names(loss) if is_wanted(each.id)}
    attributes = _computed_attributes(loss, values)
    for statement in reversed(before):
        if wanted & _changed_by(statement) or attributes & _stored_in(statement):
            body.insert(0, statement)
            wanted |= {each.id for each in _names(statement) if is_wanted(each.id)}
            attributes |= _computed_attributes(statement, values)
    is_whole = attributes <= set().union(*map(_stored_in, body))  # else another function has set one
    return body if is_whole else []


def _computed_attributes(tree: ast.AST, values: Any) -> set[str]:
    """The attributes of objects that code reads and that have a graph, such as `self.loss`, but not `x.T`, as code."""
    nodes = (each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load))
    texts = {ast.unparse(each): ast.unparse(each.value) for each in nodes}
    known = {text: owner for text, owner in texts.items() if _PLAIN.fullmatch(text)}
    of_objects = (text for text, owner in known.items() if not isinstance(_value_of(owner, values), Tensor))
    return {text for text in of_objects if _is_computed(_value_of(text, values))}


def _value_of(attribute: str, values: Any) -> Any:
    first, *names = attribute.split(".")
    return functools.reduce(lambda thing, name: getattr(thing, name, None), names, values.get(first))


def _changed_by(statement: ast.stmt) -> set[str]:
    """The variables that a statement sets, or whose value it changes: `x[0] = 1`, `x.clamp_(min=0)`, `x.append(1)`."""
    found = {each.id for each in _names(statement, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found |= {each.id for each in _names(node.value)}
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _CHANGING.fullmatch(node.func.attr)
        ):
            found |= {each.id for each in _names(node.func.value)}
    return found


def _stored_in(statement: ast.stmt) -> set[str]:
    """The attributes and elements that a statement sets, as code."""
    nodes = (each for each in ast.walk(statement) if isinstance(each, (ast.Attribute, ast.Subscript)))
    return {ast.unparse(each) for each in nodes if isinstance(each.ctx, ast.Store)}


def _loaded(statements: Sequence[ast.stmt], stored: set[str] | None = None) -> list[str]:
    """The variables that statements read before they set them. Those that are set are added to `stored`."""
    stored, loaded = set() if stored is None else stored, dict[str, None]()
    for statement in statements:
        blocks = _blocks(statement)
        inner = {id(each) for block in blocks for each in block}
        heads = [each for each in ast.iter_child_nodes(statement) if id(each) not in inner]
        loaded |= dict.fromkeys(each.id for head in heads for each in _names(head) if each.id not in stored)
        stored |= {each.id for head in heads for each in _names(head, ast.Store)}
        for block in blocks:
            loaded |= dict.fromkeys(_loaded(block, stored))
    return [*loaded]


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a statement, such as the body of a loop."""
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    return [*blocks, *(handler.body for handler in getattr(statement, "handlers", []))]


def _tensors_read_for(name: str, before: Sequence[ast.stmt], values: Any) -> set[str]:
    """The other tensors from which a variable is computed.

    If it is set several times, as in `w = w / w.sum()`, the first time counts.
    """
    made = next((each for each in before if name in {part.id for part in _names(each, ast.Store)}), None)
    return set() if made is None else {each.id for each in _names(made) if _is_input(values.get(each.id))} - {name}


def _is_index(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def _set_in_loop(tree: ast.Module, line: int) -> set[str]:
    """The variables that the innermost loop or function at a line sets; empty if there is none."""
    kinds = ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef
    around = [
        node for node in ast.walk(tree) if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)
    parameters = [node.arg for node in ast.walk(inner) if isinstance(node, ast.arg)] if inner is not None else []
    return {*parameters, *(each.id for each in _names(inner, ast.Store))} if inner is not None else set()


def _the_loss(loss: ast.expr, values: Any) -> Tensor:
    """The value of an expression."""
    return eval(compile(ast.fix_missing_locations(ast.Expression(loss)), "<loss>", "eval"), values)


def _position(frame: FrameType) -> tuple[int, int]:
    """The line and the column of the code that a frame runs."""
    line, _, column, _ = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return line or frame.f_lineno, column or 0


def _block_at(statements: Sequence[ast.stmt], at: tuple[int, int]) -> list[ast.stmt]:
    """The statements of a loop or function up to a place, also those of blocks such as `if`; empty without any."""
    for number, statement in enumerate(statements):
        begin, end = (
            (statement.lineno, statement.col_offset),
            (statement.end_lineno or 0, statement.end_col_offset or 0),
        )
        if begin <= at <= end:
            inner = next(filter(None, (_block_at(block, at) for block in _blocks(statement))), None)
            is_part = isinstance(statement, (ast.If, ast.With, ast.AsyncWith, ast.Try))
            outer = statements[:number] if is_part else []
            return [*outer, *inner] if inner else [*statements[: number + 1]]
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
