"""The losses of an unchanged script: `python -m zero_or_nan.explain --probe script.py`.

The script runs until its first backward pass. If one of the user's functions has returned the loss by then, the search
uses this function with the arguments of that call. If not, a function is cut out of the code before the pass.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import graph_from, not_compiled
from ...replacing import put_back, replace_engine
from ..program.code import is_inside
from ..program.rerun import RandomState
from ..program.tensors import tensors_in
from .cut_out import cut_out
from .finding import ProbeReport
from .loss import loss_of
from .probing import probe

NO_FUNCTION = (
    "no function of the script returned the loss of the first backward pass, and explain could not cut the loss out of "
    "the code before it. Write the loss as a function of a batch: def loss_fn(x, y): return F.mse_loss(model(x), y)"
)
OTHERS = "{} other losses of this script were not searched: write them as functions with different names"
PART = "this function returns only a part of the loss; the other parts were not searched"
CUT_OUT = "no function of the script returns the loss, so this function was searched, which the test calls, too:\n\n{}"

_MOST_LOSSES = 4
"""How many losses of a script are searched."""

_STANDARD = os.path.dirname(os.__file__)
"""The folder of Python's standard library. PyTorch calls functions from there with a loss."""


class FirstStep(SystemExit):
    """Ends a script at its first backward pass."""


class Called(NamedTuple):
    """A call of a user's function that returned a loss. `began` and `ended` are positions among all such events."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    loss: Tensor
    began: int
    ended: int

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes this call from other calls of the same code: its function, its owner, and its flags."""
        flags = [repr(each) for each in self.inputs if isinstance(each, (bool, str)) or each is None]
        named = getattr(self.function, "keywords", {})
        flags += [f"{name}={each!r}" for name, each in named.items() if isinstance(each, (bool, str))]
        inner = getattr(self.function, "func", self.function)
        return id(getattr(inner, "__func__", inner)), id(getattr(inner, "__self__", None)), *flags

    def is_inside(self, other: Called) -> bool:
        return other.began < self.began and self.ended < other.ended

    @property
    def gets_a_loss(self) -> bool:
        """Whether an argument is a number with a graph, as for a function that clips or counts a loss."""
        return any(tensor.numel() == 1 and tensor.grad_fn is not None for tensor in tensors_in(self.inputs))


class Losses:
    """While entered, a search replaces the first backward pass, and then ends the script.

    Attributes:
        reports: the reports of the losses by the names of their functions; None if there was no backward pass.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._running: dict[FrameType, tuple[int, dict[str, Any]]] = {}
        self._found: list[Called] = []
        self.reports: dict[str, ProbeReport] | None = None

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
        if kwargs.get("accumulate_grad") is False and args[2]:  # a gradient that is part of the loss, as in a penalty
            return run(roots, *args, **kwargs)
        self.__exit__()
        graph = graph_from(tensors_in(roots))
        calls = [call for call in self._found if call.loss.grad_fn in graph and not call.gets_a_loss]
        with_tensors = [call for call in calls if tensors_in(call.inputs)]  # others have a batch that can't be changed
        is_whole = _is_made_of({call.loss.grad_fn for call in calls}, tensors_in(roots))
        reports = self._outermost(with_tensors) or self._outermost(calls) if is_whole else {}
        if not reports and (cut := self._cut_out(graph)) is not None:
            reports["the loss"] = cut
        if not reports and not is_whole:
            reports = self._outermost(with_tensors) or self._outermost(calls)
            for report in reports.values():
                report.notes.append(PART)
        self.reports = reports
        raise FirstStep

    def _outermost(self, calls: Sequence[Called]) -> dict[str, ProbeReport]:
        """The reports of the outermost calls that can run again; of calls inside of the others, if there are none."""
        outermost = [call for call in calls if not any(map(call.is_inside, calls))]
        distinct = {call.key: call for call in reversed(outermost)}
        reports: dict[str, ProbeReport] = {}
        for call in [*distinct.values()][::-1][:_MOST_LOSSES]:
            with contextlib.suppress(Exception):  # such as the end of an iterator, from which the call takes its batch
                name = call.name if call.name not in reports else f"{call.name} ({len(reports) + 1})"
                reports[name] = probe(call.function, *call.inputs, seconds=self._seconds)
        if reports and len(distinct) > _MOST_LOSSES:
            next(iter(reports.values())).notes.append(OTHERS.format(len(distinct) - _MOST_LOSSES))
        inner = [call for call in calls if any(map(call.is_inside, calls))]
        return reports or (self._outermost(inner) if inner else {})

    def _cut_out(self, graph: Any) -> ProbeReport | None:
        """The report of a loss that is cut out of the code before its backward pass; None if that does not work."""
        frame: FrameType | None = sys._getframe()
        cut = None
        while frame is not None and cut is None:
            cut = None if is_inside(frame.f_code.co_filename) else cut_out(frame, graph)
            frame = frame.f_back
        if cut is None:
            return None
        function, inputs, code, loss = cut
        try:
            before = RandomState.now()
            again = function(*inputs)
            is_same = before.has_changed() or torch.allclose(again, loss, rtol=0.05, atol=1e-3)
            report = probe(function, *inputs, seconds=self._seconds) if is_same else None
        except Exception:  # a variable that it needs has changed since
            return None
        if report is None:
            return None
        report.notes.append(CUT_OUT.format(code))
        return report


_LINEAR = frozenset(
    f"{name}Backward0" for name in "Add Cat Div Expand Mean Mul Neg Squeeze Stack Sub Sum ToCopy Unsqueeze View".split()
)
"""The nodes by which a script adds up losses, and scales them."""


def _is_made_of(losses: set[Any], roots: Sequence[Tensor]) -> bool:
    """Whether backward begins at sums of these losses alone."""
    left = [root.grad_fn for root in roots]
    while left:
        node = left.pop()
        if node in losses:
            continue
        if node is None or node.name() not in _LINEAR:
            return False
        left += [ahead for ahead, _ in node.next_functions if ahead is not None]
    return True


def _loss_in(result: Any) -> Tensor | None:
    """The loss in a result, if it is a single number with a graph."""
    try:
        loss, path = loss_of(result)
    except TypeError:
        return None
    return loss if loss.grad_fn is not None and not path.endswith(".sum()") else None


def _function_of(frame: FrameType) -> FunctionType | None:
    """The function whose call a frame is."""
    owners = [each for each in gc.get_referrers(frame.f_code) if isinstance(each, FunctionType)]
    return next((each for each in owners if each.__code__ is frame.f_code and _closes_over(each, frame)), None)


def _closes_over(function: FunctionType, frame: FrameType) -> bool:
    """Whether the variables of outer functions that a call sees are those of a function: a factory makes several."""
    values = frame.f_locals
    pairs = zip(frame.f_code.co_freevars, function.__closure__ or (), strict=True)
    try:
        return all(name not in values or cell.cell_contents is values[name] for name, cell in pairs)
    except ValueError:  # a variable that is not set yet
        return False


def _called(function: FunctionType, values: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its positional arguments, from its variables when it was called."""
    names, more, more_named = inspect.getargs(function.__code__)
    count = function.__code__.co_argcount
    inputs = [*(values[name] for name in names[:count]), *(values[more] if more else ())]
    named = {name: values[name] for name in names[count:]} | (values[more_named] if more_named else {})
    called: Callable[..., Any] = MethodType(function, inputs.pop(0)) if names[:1] == ["self"] else function
    batch = {name: value for name, value in named.items() if tensors_in(value)}
    others = {name: value for name, value in named.items() if name not in batch}
    called = functools.partial(called, **others) if others else called
    return _by_position(called, len(inputs), [*batch]) if batch else called, (*inputs, *batch.values())


def _by_position(function: Callable[..., Any], count: int, names: Sequence[str]) -> Callable[..., Any]:
    """A function that takes some named arguments by their position, after its own."""

    def loss_fn(*inputs: Any) -> Any:
        return function(*inputs[:count], **dict(zip(names, inputs[count:], strict=True)))

    first = [*inspect.signature(function).parameters][:count]
    known = [name if name.isidentifier() and name not in names else f"input_{at}" for at, name in enumerate(first)]
    parameters = [*known, *(f"input_{at}" for at in range(len(known), count)), *names]
    of_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
    loss_fn.__signature__ = inspect.Signature([inspect.Parameter(each, of_position) for each in parameters])  # type: ignore[attr-defined]
    return loss_fn
