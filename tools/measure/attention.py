"""Queries whose keys are all masked, in Flex attention and a Hugging Face model: both are too slow to run on a page."""

from __future__ import annotations

import html
import os
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import show
from helpers.recorded import spans

from ..project import Project
from .records import RELEASE, by_release, keep_release, per_release, prose

KEEP = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
"""The keys that each query may attend to. The last query may attend to no key."""
SMALL = 1e-5
"""The largest difference from the reference that counts as round-off."""

FLEX, LLAMA = "flex_attention", "LlamaForCausalLM"
HEADS = {
    LLAMA: [
        *("attention and mask", "logits are off by", "loss"),
        *("loss, first token without a label", "gradient of that loss is off by"),
    ],
    FLEX: ["mask", "output of a query without a key", "gradients are off by"],
}
"""The columns of each table. The first column says what the row measures."""

Rows = dict[str, list[list[str]]]
"""The rows of each table, as text."""


def attention(project: Project) -> None:
    """Run everything on this PyTorch, and add the outcomes to `results/measured/attention.json`."""
    found = {FLEX: flex(), LLAMA: llama() if find_spec("transformers") else []}
    for name, rows in found.items():
        print(f"torch {RELEASE}, {name}:", *rows, sep="\n  ")
    add(project, RELEASE, found)


def flex() -> list[list[str]]:
    """Unfused Flex attention, for each form of the mask: the output for the fully masked row, and the gradients."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend: Callable[..., Tensor] = flex_attention
    lowest = torch.finfo(torch.float32).min
    block = create_block_mask(lambda b, h, i, j: KEEP[i, j], 1, 1, 3, 3, device="cpu")
    forms: dict[str, dict[str, Any]] = {
        "block_mask": {"block_mask": block},
        "score_mod, −inf": {"score_mod": lambda s, b, h, i, j: torch.where(KEEP[i, j], s, -torch.inf)},
        "score_mod, finfo.min": {"score_mod": lambda s, b, h, i, j: torch.where(KEEP[i, j], s, lowest)},
    }
    rows = []
    for form, options in forms.items():
        torch.manual_seed(0)
        inputs = [torch.randn(1, 1, 3, 4) for _ in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            last = attend(*inputs, **options)[0, 0, 2]
            even = torch.allclose(last, inputs[2][0, 0].mean(0))
            value = "mean of v" if even else "0" if not last.any() else "NaN" if last.isnan().any() else "other"
            q, k, v = leaves = [each.clone().requires_grad_() for each in inputs]
            try:
                attend(q, k, v, **options)[0, 0, :2].square().sum().backward()
                gradients = off([each.grad for each in leaves], _used(inputs))
            except NotImplementedError as error:
                gradients = f"raises {type(error).__name__}"
        rows.append([form, value, gradients])
    return rows


def _used(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients in float64 of the loss on the used rows, computed without masked queries and keys."""
    q, k, v = (each[..., :2, :].double().requires_grad_() for each in inputs)
    loss = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).square().sum()
    return [F.pad(each, (0, 0, 0, 1)) for each in torch.autograd.grad(loss, (q, k, v))]


def off(found: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> str:
    """The largest difference of tensors from their references, in words. `0` means round-off."""
    pairs = zip(found, wanted, strict=True)
    apart = [torch.full_like(b, torch.nan) if a is None else a.double() - b.double() for a, b in pairs]
    far = torch.stack([each.abs().max() for each in apart]).max()  # NaN if any difference is NaN
    return "NaN" if far.isnan() else "0" if far < SMALL else f"{far:.2g}"


IDS = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]])
TOKEN = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
"""The token masks of two sentences. The second sentence has two tokens after two tokens of padding."""


def llama() -> list[list[str]]:
    """A tiny model of two layers, made from a configuration, for each kind of attention and each form of the mask."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    causal = torch.ones(4, 4, dtype=torch.bool).tril() & TOKEN.bool()[:, None, None]
    masks = {
        "2-D, of tokens": TOKEN,
        "4-D, bool": causal,
        "4-D, −inf": torch.zeros(causal.shape).masked_fill(~causal, -torch.inf),
        "4-D, finfo.min": torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min),
    }
    rows = []
    for kind in ("eager", "sdpa"):
        model = _model(kind)
        with torch.no_grad():
            alone = [model(input_ids=IDS[:1]).logits[0], model(input_ids=IDS[1:, 2:]).logits[0]]
        labels = IDS.masked_fill(TOKEN == 0, -100)
        kept = labels.clone()
        kept[1, 2] = -100  # otherwise the padding row before it would have to predict this token
        wanted = _alone(_model(kind).double(), kept)
        for name, mask in masks.items():
            model.zero_grad()
            result = model(input_ids=IDS, attention_mask=mask, labels=kept)
            result.loss.backward()
            gradient = off([each.grad for each in model.parameters()], wanted)
            logits = [result.logits[0].detach(), result.logits[1, 2:].detach()]
            with torch.no_grad():
                loss = model(input_ids=IDS, attention_mask=mask, labels=labels).loss
            texts = [_number(loss), _number(result.loss)]
            rows.append([f"{kind}, {name}", off(logits, alone), *texts, gradient])
    return rows


def _model(kind: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=16, num_key_value_heads=2, pad_token_id=0, attn_implementation=kind, **sizes)
    model: nn.Module = LlamaForCausalLM(config)
    return model


def _alone(model: nn.Module, labels: Tensor) -> list[Tensor]:
    """The gradients in float64, with each sentence alone and without padding."""
    call: Callable[..., Any] = model
    terms = []
    for ids, wanted in ((IDS[:1], labels[:1]), (IDS[1:, 2:], labels[1:, 2:])):
        logits = call(input_ids=ids).logits[0, :-1]
        terms.append(F.cross_entropy(logits, wanted[0, 1:], reduction="sum", ignore_index=-100))
    count = int((labels[:, 1:] != -100).sum())
    return list(torch.autograd.grad(sum(terms) / count, list(model.parameters())))  # type: ignore[arg-type]


def _number(loss: Tensor) -> str:
    return "NaN" if loss.isnan() else f"{loss.item():.3f}"


def add(project: Project, release: str, found: Rows) -> Path:
    """Put the rows of a release into the record, next to the rows of other releases; return the file."""
    lines = [{"table": table, "row": row[0], "cells": row[1:]} for table, rows in found.items() for row in rows]
    return keep_release(project, "attention", release, lines, "table", "row")


def recorded(content: dict[str, Any]) -> dict[str, Rows]:
    """The rows in the record, by release."""
    found: dict[str, Rows] = {}
    for release, lines in by_release(content).items():
        found[release] = {table: [] for table in HEADS}
        for line in lines:
            found[release][line["table"]].append([line["row"], *line["cells"]])
    return found


# On the page.


def shown(record: dict[str, Any]) -> str:
    """The two tables. If releases differ, they show each outcome with the releases that have it."""
    content = recorded(record)
    tables = []
    for name, head in HEADS.items():
        having = {release: {row[0]: row[1:] for row in rows[name]} for release, rows in content.items() if rows[name]}
        rows = []
        for label, found in having[list(having)[-1]].items():
            columns = ({r: _word(rows[label][at]) for r, rows in having.items()} for at in range(len(found)))
            rows.append([html.escape(label), *map(per_release, columns)])
        caption = f"<code>{html.escape(name)}</code>, on a CPU, PyTorch {spans(list(having))}"
        tables.append(show.table(caption, head, rows, stack=True))
    words = f"<em>Off by</em> is the largest difference from the reference; 0 means less than {SMALL:g}."
    return prose(*tables, f'<p class="zn-note">{words}</p>')


def _word(text: str) -> str:
    if text.startswith("raises"):
        return html.escape(text)  # longer than a phone's column: this text may be broken, a number may not
    return f'<span class="{"zn-nan" if text == "NaN" else "zn-finite"}">{html.escape(text)}</span>'
