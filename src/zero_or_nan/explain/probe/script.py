"""The losses of an unchanged script: `python -m zero_or_nan.explain --probe script.py`.

The script runs until its first backward pass. If one of the user's functions has returned the loss by then, the search
uses this function with the arguments of that call. If not, a function is cut out of the code before the pass, because
many scripts have `loss = …` and `loss.backward()` in one loop. This function has the statements of the block that
compute the loss. Tensors without a graph are its inputs, and all other variables keep their values.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...ignoring.inside import graph_from, not_compiled
from ...replacing import put_back, replace_engine
from ..program.code import is_inside
from ..program.tensors import tensors_in
from .finding import ProbeReport
from .loss import loss_of
from .probing import probe

NO_FUNCTION = (
    "no function of the script returned the loss of the first backward pass, and explain could not cut the loss out of "
    "the code before it. Write the loss as a function of a batch: def loss_fn(x, y): return F.mse_loss(model(x), y)"
)
CUT_OUT = "no function of the script returns the loss, so this function was searched, which the test calls, too:\n\n{}"

_STANDARD = os.path.dirname(os.__file__)
"""The folder of Python's standard library. PyTorch calls functions from there with a loss."""


class FirstStep(SystemExit):
    """Ends a script at its first backward pass, with the reports of its losses by the names of their functions."""

    def __init__(self, reports: dict[str, ProbeReport]) -> None:
        super().__init__()
        self.reports = reports


class Called(NamedTuple):
    """A call of a user's function that returned a loss. `began` and `ended` are positions among all such events."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    loss: Tensor
    began: int
    ended: int


class Losses:
    """While entered, a search replaces the first backward pass, and then ends the script."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._running: dict[FrameType, tuple[int, dict[str, Any]]] = {}
        self._found: list[Called] = []

    def __enter__(self) -> None:
        replace_engine(self, lambda run: not_compiled(functools.partial(self._search, run)))
        sys.setprofile(self._note)

    def __exit__(self, *details: object) -> None:
        sys.setprofile(None)
        put_back(self)

    def _note(self, frame: FrameType, event: str, result: Any) -> None:
        """Note the arguments of a call, and its result if that is a loss."""
        filename = frame.f_code.co_filename
        if event not in ("call", "return") or is_inside(filename) or os.path.dirname(filename) == _STANDARD:
            return
        self._count += 1
        if event == "call":
            if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
                self._running[frame] = self._count, dict(frame.f_locals)
        elif frame in self._running:
            began, values = self._running.pop(frame)
            loss = _loss_in(result)
            function = None if loss is None else _function_of(frame)
            if loss is not None and function is not None:
                self._found.append(Called(function.__qualname__, *_called(function, values), loss, began, self._count))

    def _search(self, run: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        self.__exit__()
        graph = graph_from(tensors_in(roots))
        calls = [call for call in self._found if call.loss.grad_fn in graph]
        outermost = [call for call in calls if not any(o.began < call.began and call.ended < o.ended for o in calls)]
        reports: dict[str, ProbeReport] = {}
        for call in outermost:
            if call.name not in reports:
                reports[call.name] = probe(call.function, *call.inputs, seconds=self._seconds)
        if not reports and (report := self._cut_out(graph)) is not None:
            reports["the loss"] = report
        raise FirstStep(reports)

    def _cut_out(self, graph: Any) -> ProbeReport | None:
        """The report of a loss that is cut out of the code before its backward pass; None if that does not work."""
        frame: FrameType | None = sys._getframe()
        cut = None
        while frame is not None and cut is None:
            cut = None if is_inside(frame.f_code.co_filename) else cut_out(frame, graph)
            frame = frame.f_back
        if cut is None:
            return None
        function, inputs, code = cut
        try:
            report = probe(function, *inputs, seconds=self._seconds)
        except Exception:  # a variable that it needs has changed since
            return None
        report.notes.append(CUT_OUT.format(code))
        return report


def _loss_in(result: Any) -> Tensor | None:
    """The loss in a result, if it is a single number with a graph."""
    try:
        loss, path = loss_of(result)
    except TypeError:
        return None
    return loss if loss.grad_fn is not None and not path.endswith(".sum()") else None


def _function_of(frame: FrameType) -> FunctionType | None:
    """The function whose call a frame is."""
    owners = gc.get_referrers(frame.f_code)
    return next((each for each in owners if isinstance(each, FunctionType) and each.__code__ is frame.f_code), None)


def _called(function: FunctionType, values: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its positional arguments, from its variables when it was called."""
    names, more, more_named = inspect.getargs(function.__code__)
    count = function.__code__.co_argcount
    inputs = [*(values[name] for name in names[:count]), *(values[more] if more else ())]
    named = {name: values[name] for name in names[count:]} | (values[more_named] if more_named else {})
    called: Callable[..., Any] = MethodType(function, inputs.pop(0)) if names[:1] == ["self"] else function
    return functools.partial(called, **named) if named else called, tuple(inputs)


# A function that is cut out of the code.


def cut_out(frame: FrameType, graph: Any) -> tuple[Callable[..., Any], tuple[Any, ...], str] | None:
    """A function that computes a loss whose backward pass has just begun, with its inputs and its code.

    Args:
        frame: the frame of the line that began the pass. If the line can't be read, the result is None.
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
    return values[name], (*inputs.values(),), ast.unparse(header)


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
