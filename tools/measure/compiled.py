"""Measures how many layers of `torch.nn` `ignoring` follows inside of a compiled region.

Each layer of the tests' table runs compiled, with bad rows that the loss slices away, or deselects by `where`. The
gradient has to be plain PyTorch's on the good rows. A third loss uses all rows: no NaN may then become a number.

    python -m tools.measure.compiled [--backend aot_eager] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zero_or_nan import ignoring

TESTS = Path(__file__).parents[2] / "tests" / "zero_or_nan" / "ignoring"


def losses(rows: int) -> dict[str, Any]:
    """The losses, by name. Each gets the output of a layer, and positive weights of its shape."""

    def deselected(output: Tensor, weights: Tensor) -> Tensor:
        used = (torch.arange(len(output)) < rows).view(-1, *[1] * (output.dim() - 1))
        return torch.where(used, output * weights, 0.0).sum()

    return {
        "sliced": lambda output, weights: (output * weights)[:rows].sum(),
        "deselected": deselected,
        "all used": lambda output, weights: (output * weights).sum(),
    }


def measured(name: str, backend: str, table: Any) -> dict[str, str]:
    """By loss and bad number: "fixed", "warned", "silent", or "hidden"."""
    make, shape, out, inputs = table.LAYERS[name]
    torch.manual_seed(0)
    module: nn.Module = make()
    given = [torch.randn(shape) for _ in range(inputs)]
    found, rows = {}, shape[0] // 2
    for kind, loss in losses(rows).items():
        torch._dynamo.reset()

        def program(leaves: list[Tensor], weights: Tensor, loss: Any = loss) -> Any:
            return loss(out(module(*leaves)), weights)

        with torch.no_grad():
            weights = torch.rand_like(out(module(*given)))
        run = torch.compile(program, backend=backend)

        def gradients(backward: Any, tensors: list[Tensor], program: Any, weights: Tensor = weights) -> list[Tensor]:
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            module.zero_grad()
            backward(program(leaves, weights))
            return [torch.zeros_like(p) if p.grad is None else p.grad for p in (*module.parameters(), *leaves)]

        for label in ("nan", "inf"):
            bad = table.spoiled(given, rows, table.BAD[label])
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                ours = gradients(ignoring.backward, bad, run)
            is_told = any("ignoring could not follow" in str(warning.message) for warning in told)
            if kind == "all used":
                uncompiled = gradients(ignoring.backward, bad, program)
                kept = all(bool((a.isfinite() <= b.isfinite()).all()) for a, b in zip(ours, uncompiled, strict=True))
                found[f"{kind}, {label}"] = "fixed" if kept else "hidden"
                continue
            expected = gradients(torch.autograd.backward, given, program)
            fixed = table.agree(ours, expected)
            found[f"{kind}, {label}"] = "fixed" if fixed else "warned" if is_told else "silent"
    return found


def main() -> int:
    """Print what is not fixed, and the counts. The exit status is 1 if anything is hidden, or missed in silence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--backend", default="aot_eager")
    chosen = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    table = importlib.import_module("test_modules")
    counts: Counter[str] = Counter()
    for name in chosen.names or table.LAYERS:
        if name == "AdaptiveLogSoftmaxWithLoss":  # needs a target
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measured(name, chosen.backend, table)
        counts.update(found.values())
        rest = {case: what for case, what in found.items() if what != "fixed"}
        if rest:
            print(name, rest, flush=True)
    print(dict(counts))
    return int(bool(counts["silent"] or counts["hidden"]))


if __name__ == "__main__":
    sys.exit(main())
