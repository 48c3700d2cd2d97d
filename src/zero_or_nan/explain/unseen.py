"""The watch's own operators, kept out of sight of the user's modes and of PyTorch's profilers."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C import _autograd

_modes = torch._C._len_torch_dispatch_stack
_is_profiled = _autograd._profiler_enabled


def unseen() -> AbstractContextManager[Any]:
    """While entered, no `TorchFunctionMode`, no `TorchDispatchMode`, no subclass of Tensor and no profiler sees the
    functions and operators that are called."""
    return _Unseen() if _modes() or _is_profiled() else torch._C.DisableTorchFunction()


class _Here(threading.local):
    depth = 0


_here = _Here()


class _Unseen:
    """The same while there are dispatch modes or a profiler."""

    def __enter__(self) -> None:
        self.functions = torch._C.DisableTorchFunction()
        self.functions.__enter__()
        self.modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(_modes())]
        self.is_profiled = _is_profiled()
        if self.is_profiled:
            _here.depth += 1
            _autograd._enable_record_function(False)

    def __exit__(self, *details: Any) -> None:
        if self.is_profiled:
            _here.depth -= 1
            _autograd._enable_record_function(not _here.depth)
        for mode in reversed(self.modes):
            torch._C._push_on_torch_dispatch_stack(mode)
        self.functions.__exit__(*details)
