"""What `ignoring` does on this machine's GPU: the words of the self-check, and the time of a training step."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from helpers import show
from zero_or_nan import ignoring
from zero_or_nan.selfcheck.checking import ask_all

from ..project import Project
from .records import RELEASE, gpu, keep, prose

ROUNDS = 12
"""How often each step is timed. The shortest time counts."""


def on_gpu(project: Project) -> None:
    """Run the self-check and the steps on the GPU, and write `results/measured/on_gpu.json`.

    Raises:
        Problem: if there is no GPU that PyTorch can use through CUDA.
    """
    made_with = {"torch": RELEASE, "device": gpu()}
    costs = [{"model": name, **costs_of(*make())} for name, make in MODELS.items()]
    rows, _ = ask_all(torch.device("cuda"), lambda row: None)  # last, because it changes settings of the process
    words = [{"name": row.name, "plain": row.plain, "ignoring": row.ignoring} for row in rows]
    keep(project, "on_gpu", {**made_with, "selfcheck": words, "costs": costs})


def _perceptron() -> tuple[nn.Module, Tensor]:
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 2048)


def _encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(32, 256, 512)


def _resnet() -> tuple[nn.Module, Tensor]:
    from torchvision.models import resnet50  # type: ignore[import-not-found, unused-ignore]

    return resnet50().eval(), torch.randn(32, 3, 224, 224)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "6 linear layers of 2,048, 512 rows": _perceptron,
    "transformer encoder of 6 layers, 32 × 256 tokens": _encoder,
    "ResNet-50 in evaluation, 32 pictures": _resnet,
}


def costs_of(model: nn.Module, rows: Tensor, device: str = "cuda") -> dict[str, float]:
    """The milliseconds of a plain step, and the ratios of a step with `ignoring` to it: clean, and with one row NaN.

    A step is a forward and a backward pass in float32. The loss uses all rows but the last one.
    """
    model, rows = model.to(device), rows.to(device)
    bad = rows.clone()
    bad[-1] = torch.nan
    times: dict[tuple[str, str], float] = {}
    for number in range(ROUNDS):
        for method in (torch.autograd, ignoring):
            for what, data in (("clean", rows), ("contaminated", bad)):
                step = _seconds(model, data, method)
                if number:  # the first round also sets up kernels
                    key = method.__name__, what
                    times[key] = min(step, times.get(key, step))
    plain, ours = torch.autograd.__name__, ignoring.__name__
    ratios = {what: times[ours, what] / times[plain, what] for what in ("clean", "contaminated")}
    return {"plain_ms": 1000 * times[plain, "clean"], **ratios}


def _seconds(model: nn.Module, rows: Tensor, method: Any) -> float:
    model.zero_grad()
    _wait(rows)
    started = time.perf_counter()
    method.backward(model(rows)[:-1].square().mean())
    _wait(rows)
    return time.perf_counter() - started


def _wait(rows: Tensor) -> None:
    """Wait until the GPU is done."""
    if rows.is_cuda:
        torch.cuda.synchronize()


# On the page.


def shown(record: dict[str, Any]) -> str:
    """A sentence about the self-check, which names what is not right, and the table of costs."""
    words = record["selfcheck"]
    right = [row["name"] for row in words if row["ignoring"] in ("right", "rounded")]
    asked = [row for row in words if row["ignoring"] != "no sample"]
    others = [f"{row['name']}: <em>{row['ignoring']}</em>" for row in asked if row["name"] not in right]
    place = f"an {html.escape(record['device'])} with PyTorch {record['torch']}"
    said = f"The self-check on {place}: {len(right)} of {len(asked)} rows are right or rounded."
    said += f" Not so: {'; '.join(others)}." if others else ""
    rows = [
        [html.escape(row["model"]), f"{row['plain_ms']:.1f}", *(f"{row[k]:.1f}" for k in ("clean", "contaminated"))]
        for row in record["costs"]
    ]
    head = ["model", "plain step, ms", "clean step with ignoring", "step with one row of NaN"]
    table = show.table(f"Times of a step on {place}, as multiples of plain PyTorch's", head, rows, stack=True)
    return prose(f"<p>{said}</p>", table)
