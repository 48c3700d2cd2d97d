"""What only a GPU can show: the self-check, the time of a training step, and queries whose keys are all masked."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import benchmark

from helpers import show
from zero_or_nan import ignoring
from zero_or_nan.selfcheck.checking import ask_all

from ..project import Project
from .records import RELEASE, gpu, keep, prose

SECONDS = 1.0
"""How long each step is timed. The median counts."""
LENGTHS = (64, 100)
"""The numbers of queries and keys."""
EMPTY = {"last rows": slice(-8, None), "first rows": slice(8), "whole sentence": slice(None)}
"""The queries of the second of two sentences that have no key. The loss does not use them."""
SEEDS = 2
FAR = 0.05
"""The largest distance from the right gradient that counts as the round-off of half precision, as a share of the
largest element."""
LOW = -120.0
"""About the score of each key in the case of pytorch#196678, which also needs a length % 128 of 64."""


def on_gpu(project: Project) -> None:
    """Measure on this machine's GPU, and write `on_gpu.json` and `empty_rows.json` in `results/measured`.

    Raises:
        Problem: if there is no GPU that PyTorch can use through CUDA.
    """
    made_with = {"torch": RELEASE, "device": gpu()}
    cudnn = torch.backends.cudnn.version()
    keep(project, "empty_rows", {**made_with, "cudnn": cudnn, "rows": empty_rows("cuda"), "low": low_scores("cuda")})
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
    model, clean = model.to(device), rows.to(device)
    contaminated = clean.clone()
    contaminated[-1] = torch.nan

    def seconds(method: Any, data: Tensor) -> float:
        code = "model.zero_grad(); method.backward(model(data)[:-1].square().mean())"
        timer = benchmark.Timer(code, globals={"model": model, "method": method, "data": data})
        timer.timeit(1)  # sets up kernels
        return timer.blocked_autorange(min_run_time=SECONDS).median

    ours = {"clean": seconds(ignoring, clean), "contaminated": seconds(ignoring, contaminated)}
    plain = {"clean": seconds(torch.autograd, clean), "contaminated": seconds(torch.autograd, contaminated)}
    return {"plain_ms": 1000 * plain["clean"], **{what: ours[what] / plain[what] for what in ours}}


def empty_rows(device: str) -> list[dict[str, Any]]:
    """A row for each dtype, number of keys, and form of the mask, with counts over all seeds and places."""
    rows = []
    for dtype in (torch.bfloat16, torch.float16):
        forms = {"bool": False, "-inf": -math.inf, "finfo.min": torch.finfo(dtype).min}
        for length in LENGTHS:
            for form, hidden in forms.items():
                found = [_case(device, dtype, length, hidden, at, s) for at in EMPTY.values() for s in range(SEEDS)]
                kernels, outputs, *gradients = (Counter(words) for words in zip(*found, strict=True))
                row = {"kernel": list(kernels), "cases": len(found), "output": outputs}
                row |= dict(zip(("plain", "ours", "without"), gradients, strict=True))
                rows.append({"dtype": str(dtype).removeprefix("torch."), "keys": length, "mask": form, **row})
    return rows


def _case(device: str, dtype: torch.dtype, length: int, hidden: float, at: slice, seed: int) -> tuple[str, ...]:
    """The node, the output of the empty rows, and the gradients, in words.

    The gradients are those of plain PyTorch, those of `ignoring`, and plain PyTorch's without cuDNN's attention.
    """
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 2, length, 64, device=device, dtype=dtype) for _ in range(3)]
    empty = torch.zeros(2, length, dtype=torch.bool, device=device)
    empty[1, at] = True
    keep_all = (~empty[:, None, :, None]).repeat(1, 1, 1, length)  # fused kernels refuse an expanded last dimension
    added = torch.zeros(keep_all.shape, device=device, dtype=dtype).masked_fill(~keep_all, hidden)
    mask = keep_all if hidden is False else added
    q, k, v = leaves = [each.clone().requires_grad_() for each in inputs]
    attended = F.scaled_dot_product_attention(q, k, v, mask)
    loss = _rows(attended, ~empty).float().square().sum()
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    ours = ignoring.grad(loss, leaves)
    with _without_cudnn():
        other = F.scaled_dot_product_attention(q, k, v, mask)
    without = torch.autograd.grad(_rows(other, ~empty).float().square().sum(), leaves)
    wide = [each.double().requires_grad_() for each in inputs]
    scores = (wide[0] @ wide[1].mT / math.sqrt(64)).masked_fill(~keep_all & ~empty[:, None, :, None], -math.inf)
    wanted = torch.autograd.grad(_rows(scores.softmax(-1) @ wide[2], ~empty).square().sum(), wide)
    output = _rows(attended, empty)
    value = "NaN" if output.isnan().any() else "0" if not output.any() else "other numbers"
    assert attended.grad_fn is not None
    return attended.grad_fn.name(), value, *(_word(found, wanted) for found in (plain, ours, without))


@contextmanager
def _without_cudnn() -> Iterator[None]:
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


def low_scores(device: str) -> list[dict[str, str]]:
    """The case of pytorch#196678: all scores are low, and the mask hides nothing. The gradients of each row, in words.

    They are only checked for NaN, because float64 differs from them: in half precision, terms as large as the scores
    cancel.
    """
    rows = []
    for dtype in (torch.bfloat16, torch.float16):
        length = LENGTHS[0]
        keep_all = torch.ones(1, 1, length, length, dtype=torch.bool, device=device)
        for form, mask in {"bool": keep_all, "float": torch.zeros_like(keep_all, dtype=dtype)}.items():
            torch.manual_seed(0)
            q, k, v = (torch.randn(1, 1, length, 64, device=device, dtype=dtype) / 10 for _ in range(3))
            q[..., 0], k[..., 0] = 1, LOW * math.sqrt(64)
            leaves = [each.requires_grad_() for each in (q, k, v)]
            attended = F.scaled_dot_product_attention(q, k, v, mask)
            with _without_cudnn():
                other = F.scaled_dot_product_attention(q, k, v, mask)
            loss = attended.float().square().sum()
            found = {
                "plain": torch.autograd.grad(loss, leaves, retain_graph=True),
                "ours": ignoring.grad(loss, leaves),
                "without": torch.autograd.grad(other.float().square().sum(), leaves),
            }
            assert attended.grad_fn is not None
            words = {name: _nan(gradients) or "finite" for name, gradients in found.items()}
            made = {"dtype": str(dtype).removeprefix("torch."), "mask": form, "kernel": attended.grad_fn.name()}
            rows.append(made | words)
    return rows


def _rows(attended: Tensor, rows: Tensor) -> Tensor:
    return attended.transpose(1, 2)[rows]


def _nan(found: Sequence[Tensor]) -> str:
    """The gradients that have NaN: `NaN in q`; an empty text if there is none."""
    nan = [name for name, each in zip("qkv", found, strict=True) if not each.isfinite().all()]
    return f"NaN in {', '.join(nan)}" if nan else ""


def _word(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> str:
    """`right`, `wrong`, or the gradients that have NaN."""
    if nan := _nan(found):
        return nan
    far = (float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))
    return "right" if max(far) < FAR else "wrong"


# On the page.


def shown(record: dict[str, Any]) -> str:
    """A sentence about the self-check, which names what is not right, and the table of costs."""
    asked = [row for row in record["selfcheck"] if row["ignoring"] != "no sample"]
    others = [row for row in asked if row["ignoring"] not in ("right", "rounded")]
    named = "; ".join(f"{row['name']}: <em>{row['ignoring']}</em>" for row in others)
    place = f"an {html.escape(record['device'])} with PyTorch {record['torch']}"
    said = f"The self-check on {place}: {len(asked) - len(others)} of {len(asked)} gradients are right or rounded."
    said += f" Not so: {named}." if others else ""
    rows = [
        [html.escape(row["model"]), *(f"{row[name]:.1f}" for name in ("plain_ms", "clean", "contaminated"))]
        for row in record["costs"]
    ]
    head = ["model", "plain step, ms", "clean step with ignoring ÷ plain", "step with one row of NaN ÷ plain"]
    table = show.table(f"Times of a step on {place}", head, rows, stack=True)
    return prose(f"<p>{said}</p>", table)


def rows_shown(record: dict[str, Any]) -> str:
    """A table of the queries without a key, without the lengths of which all is right; and sentences on all cases."""
    gradients = {"plain": "with plain PyTorch", "without": "without cuDNN's kernel", "ours": "with ignoring"}
    head = ["dtype", "mask", "output of the empty rows", *(f"gradients {name}" for name in gradients.values())]
    rows, others = [], set(LENGTHS)
    for row in record["rows"]:
        if any(row[column].keys() != {"right"} for column in gradients):
            others.discard(row["keys"])
    told = [row for row in record["rows"] if row["keys"] not in others]
    for row in told:
        name = _MASKS.get(row["mask"], f"<code>{html.escape(row['mask'])}</code>")
        outcomes = (_counted(row[column], row["cases"]) for column in ("output", *gradients))
        rows.append([f"<code>{row['dtype']}</code>", name, *outcomes])
    kernels = ", ".join(sorted({f"<code>{kernel}</code>" for row in record["rows"] for kernel in row["kernel"]}))
    version = record["cudnn"]
    cudnn = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    place = f"{html.escape(record['device'])}, PyTorch {record['torch']}, cuDNN {cudnn}"
    plain, without, ours = (sum(row[column].get("right", 0) for row in told) for column in gradients)
    said = (
        f"<p>Of these {sum(row['cases'] for row in told)} runs, plain PyTorch's gradients are right in {plain}. "
        f"Without cuDNN's kernel, they are right in {without}. If <code>ignoring.backward(loss)</code> replaces "
        f"<code>loss.backward()</code>, they are right in {ours}."
    )
    said += "".join(f" With {length} keys, all gradients are right." for length in sorted(others))
    low = record["low"]
    plain, without, ours = (sum("NaN" in row[column] for row in low) for column in gradients)
    said += (
        f"</p><p>In the issue's own case, the mask hides nothing, and each score is about −{-LOW:.0f}. We ran it "
        f"{len(low)} times with {LENGTHS[0]} keys: in both dtypes, with a bool and a float mask. With plain PyTorch, "
        f"<code>q.grad</code> has NaN in {plain} runs, with <code>ignoring</code> in {ours}, and without cuDNN's "
        f"kernel in {without}.</p>"
    )
    keys = " and ".join(sorted({str(row["keys"]) for row in told}))
    caption = f"Attention with empty rows and {keys} keys in cuDNN's kernel, {kernels} ({place})"
    return prose(show.table(caption, head, rows, stack=True), said)


_MASKS = {"-inf": "float, <code>−inf</code>", "finfo.min": "float, <code>finfo.min</code>"}
"""The names of masks that are added to the scores."""


def _counted(words: dict[str, int], of: int) -> str:
    """The outcomes; with their counts if they differ."""
    words = {html.escape(word.replace("other numbers", "finite, not 0")): count for word, count in words.items()}
    if len(words) == 1:
        return next(iter(words))
    return "<br>".join(f"{word} ({count} of {of})" for word, count in words.items())
