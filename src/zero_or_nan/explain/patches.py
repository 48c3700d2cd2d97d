"""What of PyTorch a watch replaces while it lasts, and puts back, whatever ended it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function
from torch.autograd.function import _HookMixin
from torch.autograd.graph import saved_tensors_hooks

from ..ignoring.graph import TELLS_OF_HOOKS
from ..replacing import is_replaced, put_back, replace
from .forward import HOOKS

if TYPE_CHECKING:
    from .recorder import Recorder

_EVAL_FRAME = "torch._dynamo.eval_frame"
_ENTRANCES = ("compile_wrapper", "_fn")
"""The functions of Dynamo in which compiled code is called, by release."""


class Patches:
    """The replacements of one watch.

    - PyTorch's engine starts through the watch.
    - `autograd.Function.apply` tells of its results: PyTorch has no other sign of it.
    - Hooks on nodes are registered through the watch, so that they do not run in a shadow.
    - Hooks on saved tensors are counted, on releases that don't tell of them.
    - A compiled region is left alone: what the compiler sees is the user's code, and not ours.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._region: Any = None

    def put_on(self) -> None:
        for module in (torch.autograd, torch.autograd.graph):
            replace(self, module, "_engine_run_backward", self._engine)
        replace(self, Function, "apply", self._apply)
        replace(self, _HookMixin, "_register_hook", self._register_hook)
        if not TELLS_OF_HOOKS:
            replace(self, saved_tensors_hooks, "__enter__", _counted)
            replace(self, saved_tensors_hooks, "__exit__", _uncounted)
        replace(self, torch, "compile", self._compile)
        self._leave_compiled_alone()

    def take_off(self) -> None:
        put_back(self)

    def _engine(self, run: Any) -> Any:
        recorder = self.recorder

        def run_engine(roots: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder.engine(run, roots, *args, **kwargs)

        return run_engine

    def _apply(self, apply: Any) -> Any:
        recorder = self.recorder

        def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != recorder.thread:
                return apply.__get__(None, cls)(*args, **kwargs)
            inside: list[Any] = []
            recorder.functions.append(inside)
            try:
                result = apply.__get__(None, cls)(*args, **kwargs)
            finally:
                recorder.functions[:] = [each for each in recorder.functions if each is not inside]
            recorder.applied(cls, args, result, inside)
            return result

        return classmethod(applied)

    def _register_hook(self, register: Any) -> Any:
        recorder = self.recorder

        def registered(hooks: Any, hook: Callable[..., Any]) -> Any:
            try:
                hook = recorder.quiet(hook)
            except Exception as error:
                recorder.failed("a hook", error)
            return register.__func__(hooks, hook)

        return staticmethod(registered)

    def _compile(self, compile: Any) -> Any:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            result = compile(*args, **kwargs)
            if not self.recorder.is_over:
                self._leave_compiled_alone()
            return result

        return compiled

    def _leave_compiled_alone(self) -> None:
        """Dynamo says through these functions when compiled code begins and ends."""
        module = sys.modules.get(_EVAL_FRAME)
        if module is None or is_replaced(self, module):
            return
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(module, name):
                replace(self, module, name, self._switch)

    def _switch(self, switch: Any) -> Any:
        """What the compiler switches itself on and off with; only the outermost compiled region counts."""
        recorder = self.recorder

        def switched(callback: Any) -> Any:
            if threading.get_ident() == recorder.thread:
                caller: Any = sys._getframe(1)
                while caller.f_code.co_filename == __file__:  # of a watch around this one
                    caller = caller.f_back
                if self._region is None and callable(callback) and caller.f_code.co_name in _ENTRANCES:
                    self._region = caller
                    recorder.compiled_region(True)
                elif self._region is caller and not callable(callback):
                    self._region = None
                    recorder.compiled_region(False)
            return switch(callback)

        return switched


def _counted(enter: Any) -> Any:
    def entered(hooks: Any) -> Any:
        HOOKS.append(hooks)
        return enter(hooks)

    return entered


def _uncounted(leave: Any) -> Any:
    def left(hooks: Any, *details: Any) -> Any:
        HOOKS[:] = [each for each in HOOKS if each is not hooks]
        return leave(hooks, *details)

    return left
