"""Formulas that people write for losses and geometry, the points at which they break, and the formulas to copy instead.

The page *Losses and geometry* has the code. This file reads it from there, so readers copy the code that is measured.
All other statements about a formula are here: the point, and the gradient that mathematics gives at the point. The rest
is measured when the table is shown.
"""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import show
from .entries import MASKED, Entries, Kind, describe, nested, outcome
from .threads import listed

_PAGE = Path(__file__).resolve().parents[2] / "chapters" / "losses-and-geometry.md"

Given = Mapping[str, Any]
"""The values of the names that a formula needs in addition to `x`."""


@dataclass(frozen=True)
class Formula:
    """A formula by hand and the formula to copy, at a point where the first one breaks.

    Args:
        name: the name that people use, with the point.
        section: the heading of its section on the page.
        call: a call of the function to copy, with `x` and the names in `given`. The function that people write has the
            same name with `_by_hand` at its end.
        at: the value of `x` at the point, a number or nested lists of numbers.
        gradient: the gradient that plain PyTorch gives at the point for the formula by hand.
        reference: the gradient at the point, from an independent formula. It is `MASKED` at each element that the
            formula to copy leaves out. None if there is no gradient.
        effect: what the formula to copy does about the point: one of the words in `helpers.atlas.EFFECTS`.
        ordinary: returns ordinary inputs, the same in every call: `x` and the other names.
        ulps: how far the formula to copy may be from float64 on ordinary inputs. See `furthest`.
        given: the values of the other names at the point.
        chosen: the gradient of the formula to copy, if it is not the reference.
        hidden: the code of the function that people write, if the page does not have it.
    """

    name: str
    section: str
    call: str
    at: Any
    gradient: Any
    reference: Any
    effect: str
    ordinary: Callable[[], tuple[Tensor, Given]]
    ulps: int
    given: Given = field(default_factory=dict)
    chosen: Any = None
    hidden: str = ""

    @property
    def by_hand(self) -> str:
        """The code of the function that people write."""
        return self.hidden or _shown(f"{self.call.partition('(')[0]}_by_hand")

    @property
    def write(self) -> str:
        """The code of the function to copy."""
        return _shown(self.call.partition("(")[0])

    @property
    def expected(self) -> Any:
        """The gradient that the formula to copy must have at the point. It is 0 at each element that is left out."""
        if self.chosen is not None:
            return self.chosen
        form = outcome(self.reference)
        assert isinstance(form, Entries)
        return torch.where(form.mask, form.data, 0.0)

    def measured(self, copied: bool = True) -> tuple[Tensor, Tensor]:
        """The value and the gradient in float32 at the point, for the formula to copy or for the formula by hand."""
        x = torch.tensor(self.at)
        return self._run(copied, x, {key: torch.tensor(value) for key, value in self.given.items()})

    def node(self) -> str:
        """The node that anomaly mode names for the formula by hand at the point, or "" if no node returns NaN."""
        try:
            # Anomaly mode warns about its speed and the forward call.
            with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
                self.measured(copied=False)
        except RuntimeError as error:
            found = re.search(r"Function '(\w+)' returned nan values", str(error))
            return found[1] if found else ""
        return ""

    def furthest(self, copied: bool = True) -> tuple[float, float]:
        """How far the value and the gradient in float32 are from the formula by hand in float64, on ordinary inputs.

        Returns:
            The largest difference of the values, in ulps of float32 at the value, but at least at 1. Then the largest
            difference of the gradients, in ulps of float32 at the largest element of the gradient.
        """
        x, given = self.ordinary()
        value, gradient = self._run(copied, x, given)
        wide = {key: _wide(each) for key, each in given.items()}
        right, right_gradient = self._run(False, x.double(), wide)
        ulp = torch.finfo(torch.float32).eps
        by_value = (value - right).abs() / right.abs().clamp(min=1) / ulp
        by_gradient = (gradient - right_gradient).abs().max() / right_gradient.abs().max() / ulp
        return by_value.max().item(), by_gradient.item()

    def _run(self, copied: bool, x: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        names = {"torch": torch, "F": F, "x": x, **given}
        with warnings.catch_warnings(action="ignore"):  # std of one element warns
            exec(self.write if copied else self.by_hand, names)
            value = eval(self.call if copied else self.call.replace("(", "_by_hand(", 1), names)
            (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient


@cache
def _shown(name: str) -> str:
    """The code of a function on the page, after the functions in the same cell that it calls."""
    for cell in re.findall(
        r"^```\{code-cell\}.*?\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        if f"def {name}(" in cell:
            functions = re.findall(r"^def .*?\n(?=\S|\Z)", cell, re.DOTALL | re.MULTILINE)
            return "\n\n\n".join(function.rstrip() for function in functions)
    raise LookupError(f"no cell of {_PAGE} defines the function {name}")


def formulas(rows: Sequence[Formula]) -> None:
    """Show a table of formulas, each with its gradient at the point, by hand and in the formula to copy."""
    show.show(_table(rows))


def _table(rows: Sequence[Formula]) -> show.Item:
    head = ["Formula and point", "By hand", "To copy", "What the copy does"]
    body, lines = [], []
    for row in rows:
        by_hand, copied = row.measured(copied=False)[1], row.measured()[1]
        lines.append(f"{row.name}: {describe(outcome(by_hand))}, {describe(outcome(copied))}")
        link = f'<a class="zn-one-line" href="#{show.anchor(row.section)}">{html.escape(row.name)}</a>'
        node = f' <code class="zn-word">{html.escape(name)}</code>' if (name := row.node()) else ""
        right = f"; the right gradient is {_entries(row.reference)}" if row.effect == "Bounds" and row.reference else ""
        body.append([link, _entries(by_hand) + node, _entries(copied), row.effect + right])
    caption = "Gradients at the point where the formula by hand breaks, in float32"
    return show.Item("\n".join(lines), show.prose(show.table(caption, head, body)))


def _entries(value: Any) -> str:
    """A gradient with three digits for each element.

    A single NaN if all elements are NaN, because there are many columns.
    """
    form = outcome(value)
    assert isinstance(form, Entries)
    cells = [show.entry(_short(text), kind) for text, kind in zip(form.texts(None), form.kinds(), strict=True)]
    all_nan = all(kind is Kind.NAN for kind in form.kinds())
    return f'<span class="zn-entries">{cells[0] if all_nan else nested(cells, form.shape)}</span>'


def _short(text: str) -> str:
    return text if text in ("--", "NaN") else f"{float(text) + 0.0:.3g}"


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device())


def _distributions() -> tuple[Tensor, Given]:
    return 3 * _random(1000, 10), {"p": (3 * _random(1000, 10, seed=1)).softmax(-1)}


def _logits() -> tuple[Tensor, Given]:
    return torch.linspace(-12, 12, 1000), {"y": torch.arange(1000).remainder(2).float()}


def _sequences() -> tuple[Tensor, Given]:
    lengths = torch.tensor([1, 2, 3, 4])
    targets = torch.tensor([[1, 0, 0, 0], [2, 1, 0, 0], [3, 3, 1, 0], [4, 2, 2, 1]])
    return _random(12, 4, 5), {"targets": targets, "frames": torch.tensor([12, 11, 10, 9]), "lengths": lengths}


def _boxes() -> tuple[Tensor, Given]:
    corners = [5 * _random(1000, 2, seed=seed) for seed in (0, 1)]
    sizes = [0.2 + _random(1000, 2, seed=seed).abs() * 4 for seed in (2, 3)]
    both = [torch.cat([low, low + size], -1) for low, size in zip(corners, sizes, strict=True)]
    return both[0], {"b": both[1]}


def _signals() -> tuple[Tensor, Given]:
    target = _random(100, 64)
    return target + torch.logspace(-2, 1, 100)[:, None] * _random(100, 64, seed=1), {"target": target}


def _tokens() -> tuple[Tensor, Given]:
    return 2 * _random(1000) - 3, {"old": 2 * _random(1000, seed=1) - 3, "advantage": _random(1000, seed=2)}


def _rotations() -> tuple[Tensor, Given]:
    q = F.normalize(_random(1000, 4), dim=-1)
    return torch.where(q[:, :1] < 0, -q, q), {}


def _entropy_slopes(logits: Sequence[float]) -> list[float]:
    """−p·(log p + H), computed by Python and not by PyTorch."""
    total = sum(map(math.exp, logits))
    shares = [math.exp(logit) / total for logit in logits]
    entropy = -sum(p * math.log(p) for p in shares if p)
    return [-p * (math.log(p) + entropy) if p else 0.0 for p in shares]


nan, inf = math.nan, math.inf
_ZEROS = [0.0, 0.0, 0.0]
_SIGMOID = 'def bce_by_hand(logits, y):\n    return F.binary_cross_entropy(logits.sigmoid(), y, reduction="none")'
# fmt: off
FORMULAS = (
    Formula("BCE by hand, a confident and wrong logit", "BCE: a confident logit", "bce(x, y)", 20.0, nan,
            1 / (1 + math.exp(-20)), "Exact", _logits, 8, {"y": 0.0}),
    Formula("BCELoss of a sigmoid, the same logit", "BCE: a confident logit", "bce(x, y)", 20.0, 0.0,
            1 / (1 + math.exp(-20)), "Exact", _logits, 8, {"y": 0.0}, hidden=_SIGMOID),
    Formula("KL, a target of 0", "KL divergence: a target of 0", "kl(p, x)", _ZEROS, [nan] * 3,
            [1 / 3, 1 / 3 - 0.25, 1 / 3 - 0.75], "Exact", _distributions, 8, {"p": [0.0, 0.25, 0.75]}),
    Formula("entropy, a masked logit", "Entropy: a masked logit", "entropy(x)", [0.0, 1.0, -inf], [nan] * 3,
            _entropy_slopes([0.0, 1.0, -inf]), "Exact", lambda: (_distributions()[0], {}), 16),
    Formula("focal loss, logits −200 and 100", "Focal loss: confident logits", "focal(x, y)", [-200.0, 100.0],
            [nan, nan], [-1.0, -1.5 * math.exp(-150)], "Exact", _logits, 8, {"y": [1.0, 1.0]}),
    Formula("CTC, two equal labels in two frames", "CTC: a target that does not fit",
            "ctc(x, targets, frames, lengths)", [[[0.0, 0.0]] * 2] * 2, [[[nan, nan], [1 / 12, -1 / 12]]] * 2,
            [[[MASKED, MASKED], [1 / 6, -1 / 6]]] * 2, "Removes", _sequences, 64,
            {"targets": [[1, 1], [1, 0]], "frames": [2, 2], "lengths": [2, 1]}),
    Formula("cosine of a zero vector", "Cosine of a zero vector", "cosine(x, b)", [0.0, 0.0], [nan, nan], None,
            "Chooses", lambda: (_random(1000, 8), {"b": _random(1000, 8, seed=1)}), 8, {"b": [1.0, 0.0]}, [0.0, 0.0]),
    Formula("GIoU of two empty boxes", "IoU and GIoU of empty boxes", "giou(x, b)", [1.0] * 4, [nan] * 4, None,
            "Chooses", _boxes, 8, {"b": [1.0] * 4}, [0.0] * 4),
    Formula("SI-SDR, a silent target", "SI-SDR and SI-SNR of silence", "si_sdr(x, target)", [0.5, -0.5], [nan, nan],
            None, "Bounds", _signals, 128, {"target": [0.0, 0.0]}, [-20 / math.log(10), 20 / math.log(10)]),
    Formula("policy ratio, log-ratio 100, advantage 1", "Policy ratio: the exp overflows",
            "policy(x, old, advantage)", 100.0, nan, 0.0, "Exact", _tokens, 16, {"old": 0.0, "advantage": 1.0}),
    Formula("policy ratio, log-ratio 100, advantage −1", "Policy ratio: the exp overflows",
            "policy(x, old, advantage)", 100.0, inf, math.exp(100), "Bounds", _tokens, 16,
            {"old": 0.0, "advantage": -1.0}, 0.0),
    Formula("quaternions 1 and −1 to axis and angle", "Quaternion to axis and angle: no rotation", "axis_angle(x)",
            [[1.0, *_ZEROS], [-1.0, *_ZEROS]], [[nan] * 4] * 2, [[0.0, 2.0, 2.0, 2.0], [0.0, -2.0, -2.0, -2.0]],
            "Exact", _rotations, 32),
    Formula("axis and angle 0 to a quaternion", "Axis and angle to a quaternion: angle 0", "quaternion(x)", _ZEROS,
            [nan] * 3, [0.5] * 3, "Exact", lambda: (_random(1000, 3), {}), 8),
    Formula("std of one element, in a division", "Standardizing one element", "standardized(x) * weight", [3.0], [nan],
            None, "Chooses", lambda: (_random(20), {"weight": _random(20, seed=1)}), 16, {"weight": 1.0}, [0.0]),
)
# fmt: on
"""Every formula, in the order of the page."""


SOURCES = listed("formulas")
"""The threads on the page, by their labels."""
