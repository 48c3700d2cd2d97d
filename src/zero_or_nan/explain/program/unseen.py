"""The watch's own operators, kept out of sight of the user's modes, PyTorch's profilers and `torch.jit.trace`."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C import _autograd

_modes = torch._C._len_torch_dispatch_stack
_is_profiled = _autograd._profiler_enabled
_is_traced = torch._C._is_tracing
_set_trace: Any = vars(torch._C)["_set_tracing_state"]


def unseen() -> AbstractContextManager[Any]:
    """While entered, no mode, no subclass of Tensor, no profiler and no tracer sees the operators that are called."""
    is_watched = _modes() or _is_profiled() or _is_traced()
    return _Unseen() if is_watched else torch._C.DisableTorchFunction()


def is_compiling() -> bool:
    """Whether PyTorch traces code, with tensors that have no numbers: its own modes have a key."""
    modes = (torch._C._get_dispatch_stack_at(at) for at in range(_modes()))
    return any(getattr(mode, "_mode_key", None) is not None for mode in modes)


class _Here(threading.local):
    depth = 0


_here = _Here()


class _Unseen:
    """The same while there are dispatch modes, a profiler or a tracer."""

    def __enter__(self) -> None:
        self.functions = torch._C.DisableTorchFunction()
        self.functions.__enter__()
        # PyTorch's own modes, as of fake tensors, have a key, and are below all others. They stay.
        modes = [torch._C._get_dispatch_stack_at(at) for at in range(_modes())]
        others = [mode for mode in modes if getattr(mode, "_mode_key", None) is None]
        self.modes = [torch._C._pop_torch_dispatch_stack(None) for _ in others]
        self.trace = torch._C._get_tracing_state() if _is_traced() else None
        if self.trace is not None:
            _set_trace(None)
        self.is_profiled = _is_profiled()
        if self.is_profiled:
            _here.depth += 1
            _autograd._enable_record_function(False)

    def __exit__(self, *details: Any) -> None:
        if self.is_profiled:
            _here.depth -= 1
            _autograd._enable_record_function(not _here.depth)
        if self.trace is not None:  # PyTorch refuses this inside of a DTensor's operators
            _set_trace(self.trace)
        for mode in reversed(self.modes):
            torch._C._push_on_torch_dispatch_stack(mode)
        self.functions.__exit__(*details)
