"""Work in a process of its own: a strange number can crash a library below PyTorch, or keep it busy for ever."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any


def apart(work: Callable[[], Any], seconds: float) -> Any:
    """What the work gives, or, as text, why it came to no end: too long, or its process died.

    Args:
        work: called in a fork of this process; what it gives is pickled. What it prints is thrown away.
        seconds: how long it may take. Then it ends, and all processes that it has started with it.
    """
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(work, send))
    process.start()
    send.close()
    try:
        return receive.recv() if receive.poll(seconds) else f"no end in {seconds} s"
    except EOFError:
        process.join()
        code = process.exitcode or 0
        return f"the process died: {signal.Signals(-code).name if code < 0 else f'exit {code}'}"
    finally:
        assert process.pid
        with contextlib.suppress(ProcessLookupError):  # it may have had no time to make its group
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _child(work: Callable[[], Any], send: Any) -> None:
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)  # linear algebra libraries complain of NaN there
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    send.send(work())
