"""Keeps the compiler out of a pass: what a pass does depends on the numbers, so Dynamo can't trace it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, ParamSpec, TypeVar

import torch
import torch._C._dynamo.eval_frame
import torch._compile

P = ParamSpec("P")
R = TypeVar("R")


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which runs uncompiled also if the code that calls it is compiled."""
    aside = torch._compile._disable_dynamo(function)  # its first call imports Dynamo, which takes longer than a pass

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (aside if _is_at_work() else function)(*args, **kwargs)

    # PyTorch sets this on disabled functions, too: Dynamo does not trace `run` itself.
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    _skip(run.__code__)  # type: ignore[attr-defined]
    return run


def _skip(code: CodeType) -> None:
    """Keep Dynamo from tracing a call that begins in uncompiled code, for example in a hook of an optimizer."""
    dynamo: Any = torch._C._dynamo.eval_frame
    with contextlib.suppress(AttributeError):  # its functions for this differ by release
        if hasattr(dynamo, "skip_code"):
            dynamo.skip_code(code)
        else:
            actions = dynamo._FrameAction
            dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(actions.SKIP, actions.DEFAULT))


def _is_at_work() -> bool:
    """True if Dynamo may trace this code. Only then is it kept out, which costs more than a small backward pass."""
    if "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_compiling() or _callback is None or _callback() is not None  # it can't trace this call


_skip(_is_at_work.__code__)

_callback: Callable[[], Any] | None = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)


def compiled_autograd_aside() -> AbstractContextManager[None]:
    """A context in which PyTorch's engine runs backward even if compiled autograd is enabled."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    if module is None or not module.compiled_autograd_enabled:
        return contextlib.nullcontext()
    aside: AbstractContextManager[None] = module._disable()
    return aside
