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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.masked import masked_tensor

from zero_or_nan import explain, ignoring
from zero_or_nan.functions.graph import Graph, held_from
from zero_or_nan.ignoring.engine.plan import EVERYTHING, nothing_ignored, planned
from zero_or_nan.ignoring.engine.precheck import is_safe

from ..project import Problem, Project, named
from .costs_shown import BOTH, times
from .records import keep

Loss = Callable[[], Tensor]
T = TypeVar("T")
SECONDS = 1.0
"""How many seconds a case is repeated. There are at least five rounds."""


@dataclass(frozen=True)
class Workload:
    """A computation, with or without elements that contaminate plain PyTorch's gradient.

    `methods` takes whether the case is contaminated, and gives the methods. Each method is a function that runs
    forward, and a function that runs backward on the loss. `entries` and `nodes` are set if cases differ only in their
    number.
    """

    name: str
    methods: Callable[[bool], dict[str, tuple[Loss, Callable[[Tensor], None]]]]
    memory: bool = True
    entries: int | None = None
    nodes: int | None = None


def _plain(loss: Tensor) -> None:
    loss.backward()


def _layers(model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool) -> dict[str, Any]:
    """A model on a batch of rows. If contaminated, half of the rows are NaN, and the loss slices them away."""
    layers, rows, used = _model_and_rows(model, shape, contaminated)

    def forward() -> Tensor:
        layers.zero_grad()
        loss: Tensor = layers(rows)[:used].sum()
        return loss

    return {"plain": (forward, _plain), "ignoring": (forward, ignoring.backward)}


def _model_and_rows(
    model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool
) -> tuple[nn.Module, Tensor, int]:
    """A model, a batch, and how many of its rows the loss uses."""
    torch.manual_seed(0)
    layers, rows, used = model(), torch.randn(shape), shape[0]
    if contaminated:
        used //= 2
        rows[used:] = torch.nan
    return layers, rows, used


def _in_regions(
    model: Callable[[], nn.Module], shape: tuple[int, ...], backend: str, contaminated: bool
) -> dict[str, Any]:
    """The same for a compiled model. Its plain backward is compiled too, with the marks that inductor needs."""

    def made() -> nn.Module:
        ignoring.follow_compiled()
        torch._dynamo.reset()
        compiled: Any = torch.compile(model(), backend=backend)
        return cast(nn.Module, compiled)

    return _layers(made, shape, contaminated)


def _penalised(model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool) -> dict[str, Any]:
    """A critic with a gradient penalty.

    It computes the gradient of its inputs, and then the gradient of the penalty.
    """
    layers, rows, used = _model_and_rows(model, shape, contaminated)
    rows.requires_grad_()

    def forward() -> Tensor:
        layers.zero_grad()
        rows.grad = None
        loss: Tensor = layers(rows)[:used].sum()
        return loss

    def step(grad: Callable[..., Any], backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def run(loss: Tensor) -> None:
            (slope,) = grad(loss, [rows], create_graph=True)
            backward(loss + (slope[:used].norm(dim=1) - 1).square().sum())

        return run

    plain = step(torch.autograd.grad, _plain)
    return {"plain": (forward, plain), "ignoring": (forward, step(ignoring.grad, ignoring.backward))}


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def _transformer(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)


class _Block(nn.Module):
    """Two convolutions, and the input added to their output."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.path = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        shorter = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.past = nn.Identity() if channels == out else shorter

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.past(x))


def _resnet() -> nn.Module:
    """ResNet-18 with frozen norms, because norms that use a batch's own statistics would use the NaN rows."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [_Block(before, after) for before, after in itertools.pairwise(widths)]
    first = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


class _Recurrent(nn.Module):
    """An LSTM whose last step is used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.steps(x)[0][:, -1]
        return result


class _Chain(nn.Module):
    """A chain of many nodes."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        for _ in range(self.nodes):
            x = x.sin()
        return x


class _Bush(_Chain):
    """A graph of many nodes that all use the same weight: three nodes for each turn."""

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for _ in range(self.nodes // 3):
            total = total + (self.weight * x).sin()
        return total


def _where_over_exp(entries: int, contaminated: bool) -> dict[str, Any]:
    """`where(x < 80, exp(x), 0)`. If contaminated, two thirds of the exponentials overflow."""
    x = torch.linspace(-1, 240 if contaminated else 70, entries).requires_grad_()
    zero = torch.zeros(())

    def once() -> Tensor:
        x.grad = None
        return torch.where(x < 80, x.exp(), zero).sum()

    def twice() -> Tensor:
        x.grad = None
        used = x < 80
        return torch.where(used, torch.where(used, x, zero).exp(), zero).sum()

    def masked() -> Tensor:
        values = x.detach()
        loss: Tensor = masked_tensor(values, values < 80, requires_grad=True).exp().sum()
        return loss

    return {
        "plain": (once, _plain),
        "ignoring": (once, ignoring.backward),
        "double where": (twice, _plain),
        "masked": (masked, _plain),
    }


SIZES = [10**power for power in range(1, 8)]
CHAINS = [5_000, 50_000, 200_000]
CASES = {
    case.name: case
    for case in (
        Workload("4-layer MLP, width 1024, batch 256", partial(_layers, lambda: _perceptron(1024), (256, 1024))),
        Workload("4-layer MLP, width 8, batch 4", partial(_layers, lambda: _perceptron(8), (4, 8)), False),
        Workload(
            "transformer layer, width 512, 8 × 64 tokens", partial(_layers, lambda: _transformer(512, 8), (8, 64, 512))
        ),
        Workload(
            "transformer layer, width 256, 8 × 64 tokens", partial(_layers, lambda: _transformer(256, 8), (8, 64, 256))
        ),
        Workload(
            "transformer layer, width 16, 4 × 8 tokens",
            partial(_layers, lambda: _transformer(16, 2), (4, 8, 16)),
            False,
        ),
        Workload("ResNet-18, 4 images of 64 × 64", partial(_layers, _resnet, (4, 3, 64, 64))),
        Workload("LSTM, width 128, 16 × 32 tokens", partial(_layers, lambda: _Recurrent(128), (16, 32, 128))),
        *(
            Workload(f"a chain of {n:,} nodes", partial(_layers, partial(_Chain, n), (4, 4)), False, nodes=n)
            for n in CHAINS
        ),
        Workload("a graph of 100,000 nodes", partial(_layers, lambda: _Bush(100_000), (4, 4)), False),
        *(Workload(f"where over exp, {n} elements", partial(_where_over_exp, n), n == SIZES[-1], n) for n in SIZES),
        # The last case: once a gradient was recorded, every later pass checks whether its nodes were recorded.
        Workload(
            "gradient penalty, 4-layer MLP, width 256, batch 64",
            partial(_penalised, lambda: _perceptron(256), (64, 256)),
            False,
        ),
    )
}


_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer layer, width 512, 8 × 64 tokens": (lambda: _transformer(512, 8), (8, 64, 512)),
    "transformer layer, width 512, 8 × 512 tokens": (lambda: _transformer(512, 8), (8, 512, 512)),
    "transformer layer, width 1024, 8 × 64 tokens": (lambda: _transformer(1024, 8), (8, 64, 1024)),
    "block of ResNet-18, 64 channels, 8 images of 56 × 56": (lambda: _Block(64, 64).eval(), (8, 64, 56, 56)),
}
COMPILED = {
    f"{name}, {backend}": Workload(f"{name}, {backend}", partial(_in_regions, model, shape, backend))
    for name, (model, shape) in _LAYERS.items()
    for backend in ("aot_eager", "inductor")
}
"""Models as large as one layer of a real model, which run compiled. Inductor needs a C++ compiler."""


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


def measure(case: Workload, contaminated: bool, seconds: float = SECONDS) -> dict[str, dict[str, float]]:
    """The seconds of forward, and of backward until the graph is freed, for each method."""
    methods = case.methods(contaminated)
    least = {method: {"forward": float("inf"), "backward": float("inf")} for method in methods}
    for method, (forward, backward) in _in_turn(methods, seconds):
        start = time.perf_counter()
        loss = forward()
        middle = time.perf_counter()
        backward(loss)
        del loss
        end = time.perf_counter()
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


TrainingStep = Callable[[Callable[[Tensor], None]], Tensor]
"""A training step that is not finite. It takes the function that runs backward, and returns the loss."""


def _one_bad_row(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> TrainingStep:
    """A model on a batch with one row of NaN, which the loss uses."""
    layers, rows, _ = _model_and_rows(model, shape, False)
    rows[1] = torch.nan

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        layers.zero_grad()
        loss: Tensor = layers(rows).square().mean()
        backward(loss)
        return loss

    return step


class _Convolutions(nn.Sequential):
    """Two convolutions and a linear layer, for images of 32 × 32."""

    def __init__(self) -> None:
        first = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(32 * 64, 10))


def _masked_attention(width: int, tokens: int, batch: int) -> TrainingStep:
    """A layer of attention, written by hand. All keys of one sequence are masked."""
    torch.manual_seed(0)
    project, leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
    rows, masked = torch.randn(batch, tokens, width), torch.zeros(batch, 1, tokens, dtype=torch.bool)
    masked[1] = True

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        project.zero_grad()
        leave.zero_grad()
        query, key, value = project(rows).chunk(3, -1)
        scores = (query @ key.transpose(1, 2) / width**0.5).masked_fill(masked, -torch.inf)
        loss = leave(scores.softmax(-1) @ value).square().mean()
        backward(loss)
        return loss

    return step


def _bad_chain(nodes: int, at: int = 0, used: bool = True) -> TrainingStep:
    """A chain in which one element becomes NaN before some node. The loss uses this element, or slices it away."""
    weight, spoils = torch.full((4,), 0.5, requires_grad=True), torch.tensor([torch.nan, 1.0, 1.0, 1.0])

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        weight.grad = None
        x = weight * 1.0
        for number in range(nodes):
            x = (x * spoils if number == at else x).sin()
        loss = (x if used else x[1:]).sum()
        backward(loss)
        return loss

    return step


def _logarithms(count: int, size: int) -> TrainingStep:
    """Logarithms of 0. Each of them is a separate origin."""
    weight = torch.ones(size, requires_grad=True)

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        weight.grad = None
        loss = torch.zeros(())
        for number in range(count):
            loss = loss + (weight * torch.arange(size).sub(number % size)).abs().log().sum()
        backward(loss)
        return loss

    return step


FAILING = {
    "one logarithm of 0": partial(_logarithms, 1, 64),
    "4-layer MLP, width 64, batch 32, one row of NaN": partial(_one_bad_row, lambda: _perceptron(64), (32, 64)),
    "4-layer MLP, width 1024, batch 256, one row of NaN": partial(_one_bad_row, lambda: _perceptron(1024), (256, 1024)),
    "2 convolutions, 32 images of 32 × 32, one of NaN": partial(_one_bad_row, _Convolutions, (32, 3, 32, 32)),
    "ResNet-18, 4 images of 64 × 64, one of NaN": partial(_one_bad_row, _resnet, (4, 3, 64, 64)),
    "attention, width 256, 8 × 64 tokens, one sequence masked": partial(_masked_attention, 256, 64, 8),
    "a chain of 1,000 nodes, NaN at the start": partial(_bad_chain, 1_000),
    "a chain of 10,000 nodes, NaN at the start": partial(_bad_chain, 10_000),
    "a chain of 10,000 nodes, NaN in the middle": partial(_bad_chain, 10_000, 5_000),
    "a chain of 10,000 nodes, NaN that is sliced away": partial(_bad_chain, 10_000, used=False),
    "a chain of 100,000 nodes, NaN at the start": partial(_bad_chain, 100_000),
    "100 logarithms of 0": partial(_logarithms, 100, 64),
}
"""Steps for which `explain` reports something. The first is so small that it shows the fixed price of a report."""


def failing(name: str) -> dict[str, float]:
    """The seconds of a step that is not finite: alone, with the backward of `ignoring`, and while `explain` watches.

    This is the processor time of one thread, because the longest of these steps run long enough for other programs to
    disturb them.
    """
    step = FAILING[name]()
    methods: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Tensor], None]]] = {
        "plain": (nullcontext, _plain),
        "ignoring": (nullcontext, ignoring.backward),
        "explain": (explain, _plain),
    }
    least, threads = dict.fromkeys(methods, float("inf")), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for method, (watch, backward) in _in_turn(methods, SECONDS, 2):
            start = time.process_time()
            with watch():
                step(backward)
            least[method] = min(least[method], time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return least


PARTED = [
    "4-layer MLP, width 8, batch 4",
    "transformer layer, width 16, 4 × 8 tokens",
    "transformer layer, width 256, 8 × 64 tokens",
    "a chain of 50,000 nodes",
    "where over exp, 10 elements",
]
"""The cases for which the table shows how long each part of a pass takes."""


def _empty_hooks(loss: Tensor, graph: Graph, unsafe: list[Any]) -> list[Any]:
    """Hooks that do nothing, wherever a pass has a hook. They show how long the engine takes to call hooks."""
    plan = planned((loss,), graph, (), set(unsafe), False, True, EVERYTHING)
    after = [node for node, *_ in (*plan.transferred, *plan.interpreted)]
    before = [node for node, *_ in plan.interpreted]
    return [
        *(node.register_hook(lambda *_: None) for node in after),
        *(node.register_prehook(lambda *_: None) for node in before),
    ]


def parts(case: Workload, contaminated: bool) -> dict[str, float]:
    """The seconds of backward with more and more of the work of `ignoring`: the walk, the check, hooks, rules."""
    forward, plain = case.methods(contaminated)["plain"]

    def walked(loss: Tensor) -> None:
        held_from((loss,))
        plain(loss)

    def looked(loss: Tensor) -> None:
        graph = held_from((loss,))
        nothing_ignored(graph) or is_safe(graph, [])
        plain(loss)

    def hooked(loss: Tensor) -> None:
        graph, unsafe = held_from((loss,)), list[Any]()
        nothing_ignored(graph) or is_safe(graph, unsafe)
        handles = _empty_hooks(loss, graph, unsafe)
        plain(loss)
        for handle in handles:
            handle.remove()

    methods = {"plain": plain, "walk": walked, "look": looked}
    methods |= {"hooks": hooked} if contaminated else {}
    methods["ignoring"] = ignoring.backward
    least = dict.fromkeys(methods, float("inf"))
    for method, backward in _in_turn(methods, SECONDS):
        loss = forward()
        start = time.perf_counter()
        backward(loss)
        del loss
        least[method] = min(least[method], time.perf_counter() - start)
    return least


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
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def costs(project: Project, *names: str) -> None:
    """Measure every case, print each result at once, and write `results/measured/costs.json`.

    If cases are named, measure only their gradients, and write nothing.
    """
    every = {**CASES, **COMPILED}
    chosen = named(names, every, "case")
    warnings.simplefilter("ignore")  # torch.masked repeats its warning about the prototype
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    if chosen:
        _rows(every[name] for name in chosen)
        return
    # First, because a recorded gradient makes all later passes slower; and longer, because the differences are small.
    compiled = _rows(COMPILED.values(), 15 * SECONDS)
    rows = _rows(CASES.values())
    states = list(itertools.product(PARTED, (False, True)))
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "rows": rows,
        "compiled": compiled,
        "parts": [_told({"case": n, "contaminated": bad, "seconds": parts(CASES[n], bad)}) for n, bad in states],
        "watched": [_told({"case": name, "seconds": watched(CASES[name])}) for name in WATCHED],
        "failing": [_told({"case": name, "seconds": failing(name)}) for name in FAILING],
    }
    keep(project, "costs", content)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A row, after it was printed as multiples of plain PyTorch's time."""
    case, seconds = row["case"] + ", contaminated" * row.get("contaminated", False), row["seconds"]
    print(f"{case}: { {method: round(took / seconds['plain'], 2) for method, took in seconds.items()} } of plain")
    return row


def _line(row: dict[str, Any]) -> str:
    state = "contaminated" if row["contaminated"] else "clean"
    parts = [f"{row['case']}, {state}: backward {times(row, 'ignoring'):.2f} of plain"]
    if "masked" in row["seconds"]:
        parts.append(f"masked / ignoring {times(row, 'masked', base='ignoring'):.1f} backward")
        parts.append(f"{times(row, 'masked', BOTH, 'ignoring'):.1f} with forward")
    if "peak" in row:
        parts.append(f"peak memory {row['peak']['ignoring'] / row['peak']['plain']:.2f} of plain")
    return ", ".join(parts)
