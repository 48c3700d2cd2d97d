"""The losses of an unchanged script: `python -m zero_or_nan.explain --probe script.py`.

The script runs until its first backward pass. By then, a function of the user's has returned the loss. This function is
searched, with the arguments that it was called with.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor

from ...ignoring.inside import graph_from, not_compiled
from ...replacing import put_back, replace_engine
from ..program.code import is_inside
from ..program.tensors import tensors_in
from .finding import ProbeReport
from .loss import loss_of
from .probing import probe

NO_FUNCTION = (
    "no function of the script returned the loss of the first backward pass: write the loss as a function, or call "
    "explain.probe with one"
)


_STANDARD = os.path.dirname(os.__file__)
"""The folder of Python's own files. PyTorch calls functions of theirs with a loss."""


class FirstStep(SystemExit):
    """Ends a script at its first backward pass.

    Attributes:
        reports: those of its losses, by the name of the function.
    """

    def __init__(self, reports: dict[str, ProbeReport]) -> None:
        super().__init__()
        self.reports = reports


class Called(NamedTuple):
    """A call of a user's function that returned a loss, with its position among the calls and their ends."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    loss: Tensor
    began: int
    ended: int


class Losses:
    """While entered, the first backward pass is a search instead, and ends the script."""

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
            return
        began, values = self._running.pop(frame, (0, None))
        loss = None if values is None else _loss_in(result)
        function = None if loss is None else _function_of(frame)
        if values is not None and loss is not None and function is not None:
            name = function.__qualname__
            self._found.append(Called(name, *_called(function, values), loss, began, self._count))

    def _search(self, run: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        self.__exit__()
        graph = graph_from(tensors_in(roots))
        inside = [each for each in self._found if each.loss.grad_fn in graph]
        outermost = [each for each in inside if not any(o.began < each.began and each.ended < o.ended for o in inside)]
        reports: dict[str, ProbeReport] = {}
        for each in outermost:
            if each.name not in reports:
                reports[each.name] = probe(each.function, *each.inputs, seconds=self._seconds)
        raise FirstStep(reports)


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
    code = function.__code__
    inputs = [values[name] for name in code.co_varnames[: code.co_argcount]]
    rest = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    inputs += values[next(rest)] if code.co_flags & inspect.CO_VARARGS else []
    named = {name: values[name] for name in code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]}
    named |= values[next(rest)] if code.co_flags & inspect.CO_VARKEYWORDS else {}
    called: Callable[..., Any] = function
    if code.co_varnames[:1] == ("self",):
        called = MethodType(function, inputs.pop(0))
    return functools.partial(called, **named) if named else called, tuple(inputs)
