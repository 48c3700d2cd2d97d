"""The costs of `ignoring` and `explain`: time and peak memory, compared with plain PyTorch and other common methods.

All methods of a case are timed in turn in one run, and pages show ratios. Each time is the minimum of many rounds,
because a disturbance only makes a round longer. Peak memory is measured in a separate process.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch import Tensor

from zero_or_nan import explain, ignoring

from ..project import Problem, Project, named
from .costs_shown import STATES, multiples
from .functions import FUNCTIONS
from .records import keep
from .workloads import CASES, COMPILED, FAILING, Loss, Workload

T = TypeVar("T")
SECONDS = 1.0
"""How many seconds a case is repeated. There are at least five rounds."""


def _in_turn(methods: dict[str, T], seconds: float, rounds: int = 5) -> Iterator[tuple[str, T]]:
    """Each method in turn, for some rounds at least.

    Every second round is reversed, because the first run of a round finds the memory in another state.
    """
    started, there = time.monotonic(), list(methods.items())
    gc.disable()
    try:
        for number in itertools.count(1):
            yield from there if number % 2 else there[::-1]
            if number >= rounds and time.monotonic() - started >= seconds:
                return
    finally:
        gc.enable()


def measure(
    case: Workload, contaminated: bool, seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, float]]:
    """The seconds of forward, and of backward until the graph is freed, for each method."""
    methods = case.methods(contaminated)
    least = {method: {"forward": float("inf"), "backward": float("inf")} for method in methods}
    for method, (forward, backward) in _in_turn(methods, seconds):
        start = clock()
        loss = forward()
        middle = clock()
        backward(loss)
        del loss
        end = clock()
        least[method]["forward"] = min(least[method]["forward"], middle - start)
        least[method]["backward"] = min(least[method]["backward"], end - middle)
    return least


WATCHED = [name for name, case in CASES.items() if case.entries is None and case.nodes is None][:7]
"""The models whose steps are timed while a tool watches them."""


def watched(case: Workload) -> dict[str, float]:
    """The seconds of a step, forward and backward: without a tool, and with each tool that looks for a NaN."""
    forward, backward = case.methods(False)["plain"]

    def step() -> Tensor:
        loss = forward()
        backward(loss)
        return loss

    methods: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Loss]] = {
        "plain": (nullcontext, step),
        "detect_anomaly": (partial(torch.autograd.set_detect_anomaly, True), step),
        "explain": (explain, step),
        "on_failure": (nullcontext, explain.on_failure(step)),
    }
    least = dict.fromkeys(methods, float("inf"))
    for method, (watch, run) in _in_turn(methods, 2 * SECONDS):
        with watch():
            run()  # the preparations of a first step are not counted
            start = time.perf_counter()
            run()
            least[method] = min(least[method], time.perf_counter() - start)
    return least


def failing(name: str) -> dict[str, float]:
    """The seconds of a step that is not finite: alone, with the backward of `ignoring`, and while `explain` watches.

    This is the processor time of one thread, because the longest of these steps run long enough for other programs to
    disturb them.
    """
    step = FAILING[name]()
    methods: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Tensor], None]]] = {
        "plain": (nullcontext, Tensor.backward),
        "ignoring": (nullcontext, ignoring.backward),
        "explain": (explain, Tensor.backward),
    }
    least = dict.fromkeys(methods, float("inf"))
    with _one_thread():
        for method, (watch, backward) in _in_turn(methods, SECONDS, 2):
            start = time.process_time()
            with watch():
                step(backward)
            least[method] = min(least[method], time.process_time() - start)
    return least


@contextmanager
def _one_thread() -> Iterator[None]:
    """While entered, PyTorch computes in one thread, whose processor time other programs hardly disturb."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def growing(name: str, seconds: float = 0.15) -> dict[str, Any]:
    """The seconds of a function's backward, in plain PyTorch and with `ignoring`, at each size."""
    row: dict[str, Any] = {"function": name, "elements": [case.entries for case in FUNCTIONS[name]]}
    with _one_thread():
        for state in STATES:
            found = [measure(case, state == "contaminated", seconds, time.process_time) for case in FUNCTIONS[name]]
            row[state] = [[least[method]["backward"] for method in ("plain", "ignoring")] for least in found]
    print(f"{name}: " + ", ".join(f"{state} {multiples(row, state)}" for state in STATES), flush=True)
    return row


def peak(case: Workload, contaminated: bool, method: str) -> int:
    """The bytes that one gradient takes at its peak, beyond what the process held before. Run it in a new process."""
    forward, backward = case.methods(contaminated)[method]
    backward(forward())  # imports, and what a compiler needs, are not counted
    forward()  # frees the gradients: their memory is part of what is measured
    _forget_peak()
    before = _status("VmRSS")
    backward(forward())
    return _status("VmHWM") - before


def print_peak(name: str, contaminated: bool, method: str) -> None:
    """Print what `peak` measures for the case with this name."""
    warnings.simplefilter("ignore")
    print(peak({**CASES, **COMPILED}[name], contaminated, method))


def _forget_peak() -> None:
    """Return free memory to the system, and reset the peak of this process to its present size."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    """A size of this process's memory in bytes, from Linux: resident now (VmRSS) or at the peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise Problem(f"/proc/self/status has no {field}; peak memory can be measured only on Linux")


_GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
"""With it, glibc gives the memory of a tensor back to the system as soon as it is freed.

Otherwise glibc keeps some of it, in pieces that the next tensor may not fit into, and the peak differs from run to run.
"""


def _peaks(case: Workload, contaminated: bool) -> dict[str, int]:
    def fresh(method: str) -> int:
        code = f"from tools.measure import costs; costs.print_peak({case.name!r}, {contaminated}, {method!r})"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | _GIVING_BACK)
        return int(done.stdout.split()[-1])

    return {method: min(fresh(method) for _ in range(3)) for method in case.methods(contaminated)}


def _rows(cases: Iterable[Workload], seconds: float = SECONDS) -> list[dict[str, Any]]:
    """The times of each case, clean and contaminated, and its memory peaks. Prints each result at once."""
    rows = []
    for case in cases:
        for contaminated in (False, True):
            row: dict[str, Any] = {
                "case": case.name,
                "entries": case.entries,
                "nodes": case.nodes,
                "contaminated": contaminated,
            }
            row["seconds"] = measure(case, contaminated, seconds)
            if case.memory:
                row["peak"] = _peaks(case, contaminated)
            rows.append(_told(row))
    return rows


def costs(project: Project, *names: str) -> None:
    """Measure every case, print each result at once, and write `results/measured/costs.json`.

    If cases or functions are named, measure only their gradients, and write nothing.
    """
    every = {**CASES, **COMPILED}
    chosen = named(names, [*every, *FUNCTIONS], "case or function")
    warnings.simplefilter("ignore")  # torch.masked repeats its warning about the prototype
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    if chosen:
        _rows(every[name] for name in chosen if name in every)
        for name in chosen:
            if name in FUNCTIONS:
                growing(name)
        return
    functions = list(map(growing, FUNCTIONS))
    # First, because a recorded gradient makes all later passes slower; and longer, because the differences are small.
    compiled = _rows(COMPILED.values(), 15 * SECONDS)
    rows = _rows(CASES.values())
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "functions": functions,
        "rows": rows,
        "compiled": compiled,
        "watched": [_told({"case": name, "seconds": watched(CASES[name])}) for name in WATCHED],
        "failing": [_told({"case": name, "seconds": failing(name)}) for name in FAILING],
    }
    keep(project, "costs", content)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A row, after it was printed as multiples of plain PyTorch's time."""
    case, seconds = row["case"] + ", contaminated" * row.get("contaminated", False), row["seconds"]
    if "entries" in row:
        seconds = {method: took["backward"] for method, took in seconds.items()}
    print(f"{case}: { {name: round(took / seconds['plain'], 2) for name, took in seconds.items()} }", flush=True)
    return row
