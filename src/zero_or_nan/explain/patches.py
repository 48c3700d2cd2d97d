"""The functions of PyTorch that a watch replaces while it lasts. It puts them back, whatever ended it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, _HookMixin
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint

from ..functions.graph import TELLS_OF_HOOKS
from ..ignoring.engine.attach import not_compiled
from ..replacing import is_replaced, put_back, replace
from .findings import Mistakes, Scope
from .forward import Forward
from .nodes import HOOKS
from .regions import Regions
from .sandbox import Sandbox

_EVAL_FRAME = "torch._dynamo.eval_frame"
_ENTRANCES = ("compile_wrapper", "_fn")
"""The functions of Dynamo in which compiled code is called, by release."""


class Patches:
    """The replacements of one watch.

    - PyTorch's engine starts through the watch.
    - `autograd.Function.apply` reports its results: PyTorch has no other sign of them.
    - Hooks on nodes are registered through the sandbox, so that they do not run in an extra pass.
    - A checkpoint reports that it runs its code again, so that an extra pass uses nothing up.
    - Modules take their fast paths: they ask whether anything overrides PyTorch's functions, and a watch does not.
    - Hooks on saved tensors are counted, on releases of PyTorch that do not know a node's hooks.
    - A compiled region is left alone: the compiler must see the user's code, and not ours.
    - The node of a compiled region reports that it saves its tensors: then the call of the region is written on it.

    Args:
        engine: runs PyTorch's engine, which it gets as its first argument.
        scope, forward, regions, sandbox, mistakes: those of the watch.
    """

    def __init__(
        self,
        engine: Callable[..., Any],
        scope: Scope,
        forward: Forward,
        regions: Regions,
        sandbox: Sandbox,
        mistakes: Mistakes,
    ) -> None:
        self._run, self._scope, self._forward = engine, scope, forward
        self._regions, self._sandbox, self._mistakes = regions, sandbox, mistakes
        self._region: Any = None

    def put_on(self) -> None:
        for module in (torch.autograd, torch.autograd.graph):
            replace(self, module, "_engine_run_backward", self._engine)
        replace(self, Function, "apply", self._apply)
        replace(self, _HookMixin, "_register_hook", self._register_hook)
        replace(self, FunctionCtx, "save_for_backward", self._save)
        replace(self, checkpoint._recomputation_hook, "__init__", self._recomputing)
        replace(self, torch.overrides, "has_torch_function", self._has_torch_function)
        if not TELLS_OF_HOOKS:
            replace(self, saved_tensors_hooks, "__enter__", _counted)
            replace(self, saved_tensors_hooks, "__exit__", _uncounted)
        replace(self, torch, "compile", self._compile)
        self._leave_compiled_alone()

    def take_off(self) -> None:
        put_back(self)

    def _engine(self, run: Any) -> Any:
        return not_compiled(functools.partial(self._run, run))

    def _apply(self, apply: Any) -> Any:
        def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            run = apply.__get__(None, cls)
            if not self._scope.is_here():
                return run(*args, **kwargs)
            with self._forward.findings.births.collected() as inside:
                result = run(*args, **kwargs)
            self._forward.applied(cls, args, result, inside)
            return result

        return classmethod(applied)

    def _register_hook(self, register: Any) -> Any:
        def registered(hooks: Any, hook: Callable[..., Any]) -> Any:
            try:
                hook = self._sandbox.silenced(hook)
            except Exception as error:
                self._mistakes.note("a hook", error)
            return register.__func__(hooks, hook)

        return staticmethod(registered)

    def _save(self, save: Any) -> Any:
        def saved(context: Any, *tensors: Any) -> Any:
            if self._scope.is_here():
                with self._mistakes.noted("a compiled region"):
                    self._regions.saves(context)
            return save(context, *tensors)

        return saved

    def _recomputing(self, init: Any) -> Any:
        def began(hook: Any, frame: Any, *details: Any) -> None:
            self._sandbox.begin_again(frame())
            init(hook, frame, *details)

        return began

    def _has_torch_function(self, has: Any) -> Any:
        def overrides(things: Any) -> bool:
            with self._forward.aside():
                return has(things)

        return overrides

    def _compile(self, compile: Any) -> Any:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            result = compile(*args, **kwargs)
            if not self._scope.is_over:
                self._leave_compiled_alone()
            return result

        return compiled

    def _leave_compiled_alone(self) -> None:
        """Watch the functions by which Dynamo begins and ends compiled code."""
        module = sys.modules.get(_EVAL_FRAME)
        if module is None or is_replaced(self, module):
            return
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(module, name):
                replace(self, module, name, self._switch)

    def _switch(self, switch: Any) -> Any:
        """A function by which the compiler switches itself on and off. Only the outermost compiled region counts."""

        def switched(callback: Any) -> Any:
            if self._scope.is_here():
                caller: Any = sys._getframe(1)
                while caller.f_code.co_filename == __file__:  # of a watch around this one
                    caller = caller.f_back
                if self._region is None and callable(callback) and caller.f_code.co_name in _ENTRANCES:
                    self._region = caller
                    self._forward.begin_compiled()
                elif self._region is caller and not callable(callback):
                    self._region = None
                    self._regions.leave()
                    self._forward.end_compiled()
                elif self._forward.is_aside and caller.f_code.co_name == "_fn":
                    return self._switch_inside(switch, callback, caller)
            return switch(callback)

        return switched

    @contextmanager
    def in_between(self) -> Iterator[None]:
        """While entered, no region runs: compiled code has ended at what can't be compiled, such as a backward pass."""
        region, self._region, self._forward.is_aside = self._region, None, False
        try:
            yield
        finally:
            self._region, self._forward.is_aside = region, True

    def _switch_inside(self, switch: Any, callback: Any, caller: FrameType) -> Any:
        """A switch inside of a region: off, before compiled code runs or what must not be compiled, and on again.

        Our own code runs while the compiler is off.
        """
        is_on = callable(callback)
        before = None if is_on else switch(callback)
        with self._mistakes.noted("a compiled region"):
            (self._regions.leave if is_on else self._regions.enter)(caller)
        return switch(callback) if is_on else before


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
