"""Which pass a thread works for. PyTorch's engine hands this to the other threads that run nodes of the pass.

The engine does so for an object that is stashed in the thread's local state. When a thread ends, it frees the object,
which needs Python: if the program ends at the same moment, it is aborted. So an object is stashed only if it is needed,
and taken out again, which PyTorch can do from 2.13 on. An object that is stashed during the engine's run is removed by
the engine.
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
    """The object that is stashed when no pass is running."""


_NOBODY = _Nobody()


def current() -> Any:
    """The pass that this thread works for; None outside of a pass."""
    if _engine_run() != -1 and torch._C._is_key_in_tls(_KEY):
        found = torch._C._get_obj_in_tls(_KEY)
        if not isinstance(found, _Nobody):
            return found
    return getattr(_here, "running", None)


def set_current(running: Any) -> None:
    """Set the pass that this thread works for, or None."""
    inside = _engine_run() != -1
    if not inside:
        _here.running = running
    if running is None and _take_out is not None:
        if torch._C._is_key_in_tls(_KEY):
            _take_out(_KEY)
    elif inside or _other_devices():
        value = _NOBODY if running is None else running  # older releases can't take an object out
        if _takes_too_much():  # add the reference that PyTorch will drop
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        _stash(_KEY, value)


def _other_devices() -> bool:
    """True if nodes may run in other threads. The engine has a thread for each device except the CPU."""
    # Asking whether there is a GPU would initialize CUDA, and after that the process can't fork.
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return torch.cuda.is_initialized()  # type: ignore[no-any-return, no-untyped-call]
    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:  # 2.6 raises if there is none
        return False


@functools.cache
def _takes_too_much() -> bool:
    """True if PyTorch drops a reference to the stashed object that it never took, as 2.6 does."""
    probe = _Nobody()
    before = sys.getrefcount(probe)
    _stash(_KEY, probe)
    taken = sys.getrefcount(probe) > before
    if not taken:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_NOBODY))
    _stash(_KEY, _NOBODY)
    return not taken
