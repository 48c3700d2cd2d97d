"""Queries whose keys are all masked, in the kernel that PyTorch chooses for half precision on a GPU.

The loss does not use these queries. So the gradients are those of the other queries, which are computed in float64
without a fused kernel.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import show
from zero_or_nan import ignoring

from ..project import Project
from .records import RELEASE, gpu, keep, prose

LENGTHS = (64, 100)
"""The numbers of queries and keys."""
EMPTY = {"last rows": slice(-8, None), "first rows": slice(8), "whole sentence": slice(None)}
"""The queries of the second of two sentences that have no key."""
SEEDS = 2
FAR = 0.05
"""The largest distance from the right gradient that counts as the round-off of half precision, as a share of the
largest element."""


def empty_rows(project: Project) -> None:
    """Measure on this machine's GPU, and write `results/measured/empty_rows.json`.

    Raises:
        Problem: if there is no GPU that PyTorch can use through CUDA.
    """
    made_with = {"torch": RELEASE, "device": gpu(), "cudnn": torch.backends.cudnn.version()}
    keep(project, "empty_rows", {**made_with, "rows": measure("cuda")})


def measure(device: str) -> list[dict[str, Any]]:
    """A row for each dtype, number of keys, and form of the mask, with counts over all seeds and places."""
    rows = []
    for dtype in (torch.bfloat16, torch.float16):
        forms = {"bool": False, "-inf": -math.inf, "finfo.min": torch.finfo(dtype).min}
        for length in LENGTHS:
            for form, hidden in forms.items():
                found = [_case(device, dtype, length, hidden, at, s) for at in EMPTY.values() for s in range(SEEDS)]
                kernels, outputs, plain, ours = (Counter(words) for words in zip(*found, strict=True))
                row = {"kernel": list(kernels), "cases": len(found), "output": outputs, "plain": plain, "ours": ours}
                rows.append({"dtype": str(dtype).removeprefix("torch."), "keys": length, "mask": form, **row})
    return rows


def _case(device: str, dtype: torch.dtype, length: int, hidden: float, at: slice, seed: int) -> tuple[str, ...]:
    """The node, the output of the empty rows, and the gradients by plain PyTorch and by `ignoring`, in words."""
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
    wide = [each.double().requires_grad_() for each in inputs]
    scores = (wide[0] @ wide[1].mT / math.sqrt(64)).masked_fill(~keep_all & ~empty[:, None, :, None], -math.inf)
    wanted = torch.autograd.grad(_rows(scores.softmax(-1) @ wide[2], ~empty).square().sum(), wide)
    output = _rows(attended, empty)
    value = "NaN" if output.isnan().any() else "0" if not output.any() else "other numbers"
    assert attended.grad_fn is not None
    return attended.grad_fn.name(), value, _word(plain, wanted), _word(ours, wanted)


def _rows(attended: Tensor, rows: Tensor) -> Tensor:
    return attended.transpose(1, 2)[rows]


def _word(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> str:
    """`right`, `wrong`, or the gradients that have NaN: `NaN in q`."""
    nan = [name for name, each in zip("qkv", found, strict=True) if not each.isfinite().all()]
    if nan:
        return f"NaN in {', '.join(nan)}"
    far = (float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))
    return "right" if max(far) < FAR else "wrong"


# On the page.


def shown(record: dict[str, Any]) -> str:
    """A table with a row for each dtype, number of keys and form of the mask."""
    head = ["dtype", "keys", "mask", "output of the empty rows", "gradients, plain PyTorch", "with ignoring"]
    rows = [
        [
            f"<code>{row['dtype']}</code>",
            str(row["keys"]),
            html.escape(row["mask"].replace("-", "−")),
            *(_counted(row[column], row["cases"]) for column in ("output", "plain", "ours")),
        ]
        for row in record["rows"]
    ]
    kernels = ", ".join(sorted({f"<code>{kernel}</code>" for row in record["rows"] for kernel in row["kernel"]}))
    version = record["cudnn"]
    cudnn = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    place = f"{html.escape(record['device'])}, PyTorch {record['torch']}, cuDNN {cudnn}"
    return prose(show.table(f"Rows without a key in {kernels}, on an {place}", head, rows, stack=True))


def _counted(words: dict[str, int], of: int) -> str:
    """The outcomes; with their counts if they differ."""
    if len(words) == 1:
        return html.escape(next(iter(words)))
    return "<br>".join(f"{html.escape(word)} ({count} of {of})" for word, count in words.items())
