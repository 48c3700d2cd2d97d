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

from .forward import HOOKS, TELLS_OF_HOOKS

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
        self._kept: list[tuple[Any, str, Any]] = []
        self._region: Any = None

    def put_on(self) -> None:
        recorder = self.recorder
        engine = torch.autograd.graph._engine_run_backward

        def run_engine(roots: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder.engine(engine, roots, *args, **kwargs)

        for module in (torch.autograd, torch.autograd.graph):
            self._replace(module, "_engine_run_backward", run_engine)
        apply = Function.__dict__["apply"]

        def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            inside: list[Any] = []
            recorder.functions.append(inside)
            try:
                result = apply.__get__(None, cls)(*args, **kwargs)
            finally:
                recorder.functions.remove(inside)
            recorder.applied(cls, args, result, inside)
            return result

        self._replace(Function, "apply", classmethod(applied))
        register = _HookMixin.__dict__["_register_hook"].__func__

        def registered(hooks: Any, hook: Callable[..., Any]) -> Any:
            return register(hooks, recorder.quiet(hook))

        self._replace(_HookMixin, "_register_hook", staticmethod(registered))
        if not TELLS_OF_HOOKS:
            enter, leave = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__

            def entered(hooks: Any) -> Any:
                HOOKS.append(hooks)
                return enter(hooks)

            def left(hooks: Any, *details: Any) -> Any:
                HOOKS[:] = [each for each in HOOKS if each is not hooks]
                return leave(hooks, *details)

            self._replace(saved_tensors_hooks, "__enter__", entered)
            self._replace(saved_tensors_hooks, "__exit__", left)
        compile = torch.compile

        def compiled(*args: Any, **kwargs: Any) -> Any:
            result = compile(*args, **kwargs)
            self._leave_compiled_alone()
            return result

        self._replace(torch, "compile", compiled)
        self._leave_compiled_alone()

    def take_off(self) -> None:
        while self._kept:
            where, name, before = self._kept.pop()
            setattr(where, name, before)

    def _replace(self, where: Any, name: str, by: Any) -> None:
        self._kept.append((where, name, vars(where)[name]))
        setattr(where, name, by)

    def _leave_compiled_alone(self) -> None:
        """Dynamo says through these functions when compiled code begins and ends."""
        module = sys.modules.get(_EVAL_FRAME)
        if module is None or any(where is module for where, _, _ in self._kept):
            return
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(module, name):
                self._replace(module, name, self._telling(getattr(module, name)))

    def _telling(self, switch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What the compiler switches itself on and off with; only the outermost compiled region counts."""
        recorder, thread = self.recorder, threading.get_ident()

        def switched(callback: Any) -> Any:
            if threading.get_ident() == thread:
                caller = sys._getframe(1)
                if self._region is None and callable(callback) and caller.f_code.co_name in _ENTRANCES:
                    self._region = caller
                    recorder.compiled_region(True)
                elif self._region is caller and not callable(callback):
                    self._region = None
                    recorder.compiled_region(False)
            return switch(callback)

        return switched
