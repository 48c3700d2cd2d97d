"""Which pass a thread works for. PyTorch's engine takes it along to the other threads that run nodes of that pass.

It does so with what is stashed for a thread. Whatever is stashed is let go as the thread ends, and needs Python for
that: a program that ends at the same moment is aborted. So nothing is stashed where it is not needed, what is stashed
is taken out again, as PyTorch can from 2.13 on, and what is stashed inside of the engine's run is undone by the engine.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import Any

import torch

_KEY = "ignoring.pass"
_stash = torch._C._stash_obj_in_tls
_take_out = getattr(torch._C, "_remove_obj_from_tls", None)
_engine_run = torch._C._current_graph_task_id
_here = threading.local()


class _Nobody:
    """What is there when no pass is running."""


_NOBODY = _Nobody()


def current() -> Any:
    """The pass that this thread works for; None outside of one."""
    if _engine_run() != -1 and torch._C._is_key_in_tls(_KEY):
        found = torch._C._get_obj_in_tls(_KEY)
        if not isinstance(found, _Nobody):
            return found
    return getattr(_here, "running", None)


def set_current(running: Any) -> None:
    """Have this thread work for a pass, or for none."""
    inside = _engine_run() != -1
    if not inside:
        _here.running = running
    if running is None and _take_out is not None:
        if torch._C._is_key_in_tls(_KEY):
            _take_out(_KEY)
    elif inside or _other_devices():
        value = _NOBODY if running is None else running
        if _takes_too_much():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        _stash(_KEY, value)


def _other_devices() -> bool:
    """Whether nodes may run in threads of their own, as those of each device but the processor do."""
    # To ask whether there is a GPU would set CUDA up, and then nobody may fork.
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return torch.cuda.is_initialized()  # type: ignore[no-any-return, no-untyped-call]
    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:  # 2.6 raises where there is none
        return False


@functools.cache
def _takes_too_much() -> bool:
    """Whether PyTorch gives a reference back that it never took, as 2.6 does."""
    probe = _Nobody()
    before = sys.getrefcount(probe)
    _stash(_KEY, probe)
    taken = sys.getrefcount(probe) > before
    if not taken:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_NOBODY))
    _stash(_KEY, _NOBODY)
    return not taken
