"""The compiler steps aside while a pass runs: what a pass does depends on numbers, and Dynamo can't look into it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
import torch._C._dynamo.eval_frame
import torch._compile

P = ParamSpec("P")
R = TypeVar("R")


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run as it is where it is called from code that is being compiled."""
    aside = torch._compile._disable_dynamo(
        function
    )  # imports Dynamo when it is first called, which takes longer than a pass

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (aside if _is_at_work() else function)(*args, **kwargs)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run


def _is_at_work() -> bool:
    """Whether Dynamo looks at the code that runs: stepping aside costs it more than a small backward pass."""
    if "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_compiling() or _callback is None or _callback() is not None  # it can't trace the last


_callback: Callable[[], Any] | None = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)


def compiled_autograd_aside() -> AbstractContextManager[None]:
    """While entered, PyTorch's engine runs backward, and no graph that compiled autograd would make of it."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    if module is None or not module.compiled_autograd_enabled:
        return contextlib.nullcontext()
    aside: AbstractContextManager[None] = module._disable()
    return aside
