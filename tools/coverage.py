"""How much `ignoring` mends, measured on PyTorch's own operator database: cases that this project did not choose.

The test is metamorphic. A part of an input is poisoned with NaN, inf or 3e38; the outputs that don't depend on that part
are selected, and the loss is a weighted sum of them. Then the gradient must be that of the input before the poison.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

POISONS = {"nan": float("nan"), "inf": float("inf"), "3e38": 3e38}
SAMPLES = 40
"""Samples of each operator that are looked at; the database has hundreds for a few."""


@dataclass
class Tally:
    """The samples of one operator: how many, and what became of them."""

    samples: int = 0
    contaminated: int = 0
    mended: int = 0
    broken: int = 0
    other_bits: int = 0
    without_rule: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.samples += other.samples
        self.contaminated += other.contaminated
        self.mended += other.mended
        self.broken += other.broken
        self.other_bits += other.other_bits
        self.without_rule |= other.without_rule
        self.notes += other.notes


def operators() -> list[Any]:
    """Operators of the database that have a derivative in float32."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]


def measure(op: Any, gradients: Callable[..., Any]) -> Tally:
    """Tally the samples of one operator, with `gradients` in the place of `torch.autograd.grad`."""
    tally = Tally()
    try:
        samples = iter(op.sample_inputs("cpu", torch.float32, requires_grad=True))
        for number in range(SAMPLES):
            sample = next(samples, None)
            if sample is None:
                break
            for case in cases(op, sample):
                tally.add(judge(case, gradients, f"{op.formatted_name if hasattr(op, 'formatted_name') else op.name}[{number}]"))
    except Exception as error:  # a sample that this machine can't make
        tally.notes.append(f"{op.name}: {type(error).__name__}: {str(error)[:200]}")
    return tally


@dataclass
class Case:
    """One poisoned sample: the function of its differentiable tensors, before and after the poison."""

    function: Callable[[list[Tensor]], list[Tensor]]
    clean: list[Tensor]
    poisoned: list[Tensor]
    selected: list[Tensor]
    name: str

    def loss(self, tensors: list[Tensor]) -> Tensor:
        torch.manual_seed(1)
        total = torch.zeros(())
        for output, used in zip(self.function(tensors), self.selected, strict=True):
            if used.any():
                weights = torch.rand(output.shape, dtype=output.real.dtype)
                chosen = output[used]
                chosen = chosen.real + 0.5 * chosen.imag if chosen.is_complex() else chosen
                total = total + (chosen * weights[used]).sum()
        return total


def cases(op: Any, sample: Any) -> Iterator[Case]:
    """The sample's ways to be poisoned."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not where or any(leaves[i].layout is not torch.strided for i in where):
        return

    def function(tensors: list[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        filled = list(leaves)
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        result = op(first, *args, **kwargs)
        result = sample.output_process_fn_grad(result)
        return [r for r in tree_flatten(result)[0] if isinstance(r, Tensor) and r.requires_grad]

    clean = [leaves[i].detach() for i in where]
    before = function([t.clone().requires_grad_() for t in clean])
    if not before or any(b.layout is not torch.strided for b in before):
        return
    for number, tensor in enumerate(clean):
        for part_name, part in parts(tensor):
            for poison_name, poison in POISONS.items():
                replaced = [poison, 0.37]
                selected = [torch.ones_like(b, dtype=torch.bool) for b in before]
                for value in replaced:
                    changed = list(clean)
                    changed[number] = tensor.masked_fill(part, value)
                    try:
                        after = function([t.clone().requires_grad_() for t in changed])
                    except Exception:
                        after = []
                    if [a.shape for a in after] != [b.shape for b in before]:
                        selected = []
                        break
                    for s, a, b in zip(selected, after, before, strict=True):
                        s &= (a == b) & b.isfinite()
                if selected and any(s.any() for s in selected):
                    poisoned = list(clean)
                    poisoned[number] = tensor.masked_fill(part, poison)
                    yield Case(function, clean, poisoned, selected, f"input {number}, {part_name} {poison_name}")


def parts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What is poisoned: half of the rows, half of the columns, one entry."""
    if tensor.numel() < 2:
        return
    for dim in dict.fromkeys((0, tensor.dim() - 1)):
        size = tensor.shape[dim]
        if size > 1:
            part = torch.zeros(tensor.shape, dtype=torch.bool)
            part.narrow(dim, (size + 1) // 2, size // 2).fill_(True)
            yield f"half of dim {dim}", part
    part = torch.zeros(tensor.shape, dtype=torch.bool)
    part.view(-1)[-1] = True
    yield "last entry", part


def judge(case: Case, gradients: Callable[..., Any], name: str) -> Tally:
    """Compare the poisoned sample's gradient with the clean one's, by plain PyTorch and by `gradients`."""

    def run(method: Callable[..., Any], start: list[Tensor]) -> list[Tensor] | Exception:
        tensors = [t.clone().requires_grad_() for t in start]
        try:
            return [
                torch.zeros_like(t) if g is None else g
                for t, g in zip(tensors, method(case.loss(tensors), tensors, allow_unused=True), strict=True)
            ]
        except Exception as error:
            return error

    tally = Tally()
    wanted = run(torch.autograd.grad, case.clean)
    plain = run(torch.autograd.grad, case.poisoned)
    if isinstance(wanted, Exception) or isinstance(plain, Exception):
        return tally
    if not all(w.isfinite().all() for w in wanted):
        return tally
    tally.samples = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = run(gradients, case.poisoned)
    for warning in caught:
        if "no rule for" in str(warning.message):
            tally.without_rule |= set(str(warning.message).split("no rule for ")[1].split(":  ")[0].split(": ")[0].split(", "))
    contaminated, mended = not same(plain, wanted), not isinstance(ours, Exception) and same(ours, wanted)
    tally.contaminated = int(contaminated)
    tally.mended = int(contaminated and mended)
    tally.broken = int(not contaminated and not mended)
    if not isinstance(ours, Exception):
        tally.other_bits = int(
            any(not torch.equal(o[p.isfinite()], p[p.isfinite()]) for o, p in zip(ours, plain, strict=True))
        )
    if not mended:
        what = f"{type(ours).__name__}: {ours}" if isinstance(ours, Exception) else ""
        tally.notes.append(f"{'BROKEN ' if not contaminated else ''}{name} {case.name} {what} {sorted(tally.without_rule)}")
    elif tally.other_bits:
        tally.notes.append(f"BITS {name} {case.name}")
    return tally


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, rtol=1e-3, atol=1e-5) for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    from helpers import ignoring

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [a for a in sys.argv[1:] if not a.startswith("/")]
    share = next((a for a in sys.argv[1:] if a.startswith("/")), "/0/1").split("/")
    chosen = [op for op in operators() if not names or op.name in names][int(share[1]) :: int(share[2])]
    everything = Tally()
    for op in chosen:
        tally = measure(op, ignoring.grad)
        everything.add(tally)
        full = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        if tally.notes or names:
            print(f"{full}: {tally.samples} samples, {tally.contaminated} contaminated, {tally.mended} mended,"
                  f" {tally.broken} broken, {tally.other_bits} bits")
            for note in tally.notes[:: max(1, len(tally.notes) // 4)][:4]:
                print("     ", note)
    print(f"ALL {everything.samples} samples, {everything.contaminated} contaminated, {everything.mended} mended,"
          f" {everything.broken} broken {everything.other_bits} bits", sorted(everything.without_rule))
