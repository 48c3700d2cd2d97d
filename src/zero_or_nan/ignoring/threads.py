"""Which pass a thread works for. PyTorch's engine takes it along to the threads that run the nodes of other devices."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

_KEY = "ignoring.pass"
_stash = torch._C._stash_obj_in_tls


class _Nobody:
    """What is there when no pass is running."""


def _takes_too_much() -> bool:
    """Whether PyTorch gives a reference back that it never took, as 2.6 does."""
    probe = _Nobody()
    before = sys.getrefcount(probe)
    _stash(_KEY, probe)
    taken = sys.getrefcount(probe) > before
    if not taken:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return not taken


_TAKES_TOO_MUCH = _takes_too_much()
_NOBODY = _Nobody()


def current() -> Any:
    """The pass that this thread works for; None outside of one."""
    found = torch._C._get_obj_in_tls(_KEY) if torch._C._is_key_in_tls(_KEY) else None
    return None if isinstance(found, _Nobody) else found


def set_current(running: Any) -> None:
    """Have this thread work for a pass, or for none."""
    value = _NOBODY if running is None else running
    if _TAKES_TOO_MUCH:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _stash(_KEY, value)


set_current(None)
