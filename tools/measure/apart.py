"""Runs work in a separate process, because an unusual number can crash a library below PyTorch or keep it busy."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def apart(work: Callable[[], Any], seconds: float) -> Any:
    """The result of the work or a text that says why it has none: an error, too little time, or the end of its process.

    Args:
        work: called in a fork of this process. Its result is pickled. Its output is discarded.
        seconds: the most seconds that the work may take. After that, its process and all its children are killed.
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
        with contextlib.suppress(ProcessLookupError):  # the process may have ended before it made its group
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def all_apart(
    items: Sequence[T],
    work: Callable[[T], R],
    seconds: float,
    lost: Callable[[T, str], R],
    told: Callable[[R], str],
) -> list[R]:
    """The results of `work` for all items, each in a separate process, two at a time.

    Args:
        items: for example operators.
        work: measures one item.
        seconds: the most seconds that one item may take.
        lost: the result for an item whose process did not end, and for the text that says why.
        told: a text about a result, which is printed, or an empty text.
    """

    def measured(item: T) -> R:
        found: R | str = apart(lambda: work(item), seconds)
        return lost(item, found) if isinstance(found, str) else found

    torch.set_num_threads(1)
    found: list[R] = []
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(measured, items):
            found.append(result)
            if text := told(result):
                print(f"\r{text}", flush=True)
            if sys.stdout.isatty():
                print(f"\r{len(found)} of {len(items)}", end="", flush=True)
    return found


def totals(tallies: Sequence[Any], counts: Sequence[str]) -> dict[str, int]:
    """The sums of these counts over all tallies."""
    return {count: sum(getattr(tally, count) for tally in tallies) for count in counts}


def counted(name: str, totals: dict[str, int]) -> str:
    """Counts in one line, such as `all operators: 3 samples, 2 fixed`."""
    return f"{name}: " + ", ".join(f"{number} {count.replace('_', ' ')}" for count, number in totals.items())


def _child(work: Callable[[], Any], send: Any) -> None:
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)  # linear algebra libraries print complaints about NaN to these files
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        found = work()
    except Exception as error:
        found = f"{type(error).__name__}: {str(error)[:200]}"
    send.send(found)
