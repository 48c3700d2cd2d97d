"""How much `ignoring` mends, measured on PyTorch's own operator database: cases that this project did not choose.

The test is metamorphic. A part of an input is poisoned with NaN, inf or 3e38; the outputs that don't depend on that
part are selected, and the loss is a weighted sum of them. The gradient must be that of the input before the poison.
A sample counts only if harmless numbers in the poison's place leave both those outputs and that gradient as they were:
a product with a zero in it does not change with its other factors, but its gradient does.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from zero_or_nan import ignoring

from ..project import Project, write
from .apart import apart

OTHERS = (0.37, -2.5)
"""Harmless numbers in the poison's place."""
POISONS = {"nan": float("nan"), "inf": float("inf"), "3e38": 3e38}
SAMPLES = 40
"""Samples of each operator that are looked at; the database has hundreds for a few."""
SECONDS = 180
"""How long one operator may take."""

Gradients = Callable[..., Any]


@dataclass
class Tally:
    """The poisoned samples of one operator, and what became of them.

    `contaminated`: plain PyTorch's gradient is not that of the clean input. `mended`: ours is, among those. `broken`:
    plain PyTorch's is and ours is not. `other_bits`: ours differs from plain PyTorch's where that is finite.
    """

    operator: str
    samples: int = 0
    contaminated: int = 0
    mended: int = 0
    broken: int = 0
    other_bits: int = 0
    without_rule: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Case:
    """One poisoned sample: the function of its differentiable tensors, before the poison, with it, and with others."""

    name: str
    function: Callable[[list[Tensor]], list[Tensor]]
    clean: list[Tensor]
    poisoned: list[Tensor]
    others: list[list[Tensor]]
    selected: list[Tensor]

    def loss(self, tensors: list[Tensor]) -> Tensor:
        """A sum of the selected outputs, each with a weight of its own."""
        torch.manual_seed(1)
        total = torch.zeros(())
        for output, used in zip(self.function(tensors), self.selected, strict=True):
            if used.any():
                chosen, weights = output[used], torch.rand(used.shape)[used]
                chosen = chosen.real + 0.5 * chosen.imag if chosen.is_complex() else chosen
                total = total + (chosen * weights).sum()
        return total


def operators() -> list[Any]:
    """Operators of the database that have a derivative in float32."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]


def name_of(op: Any) -> str:
    """The operator's name in the database, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def measure(op: Any, gradients: Gradients = ignoring.grad, samples: int = SAMPLES) -> Tally:
    """Tally the samples of one operator, with `gradients` in the place of `torch.autograd.grad`."""
    tally = Tally(name_of(op))
    try:
        for number, sample in zip(range(samples), op.sample_inputs("cpu", torch.float32, requires_grad=True)):  # noqa: B905
            for case in cases(op, sample, f"sample {number}"):
                judge(case, gradients, tally)
    except Exception as error:  # a sample that this machine can't make
        tally.notes.append(f"{type(error).__name__}: {str(error)[:200]}")
    return tally


def cases(op: Any, sample: Any, name: str) -> Iterator[Case]:
    """The ways to poison a sample that leave some of its outputs as they were."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not where or any(leaves[i].layout is not torch.strided for i in where):
        return

    def function(tensors: list[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        floating = [isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves]
        filled = [leaf.to(tensors[0].dtype) if f else leaf for leaf, f in zip(leaves, floating, strict=True)]
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        result = sample.output_process_fn_grad(op(first, *args, **kwargs))
        return [r for r in tree_flatten(result)[0] if isinstance(r, Tensor) and r.requires_grad]

    def outputs(tensors: list[Tensor]) -> list[Tensor]:
        return function([tensor.clone().requires_grad_() for tensor in tensors])

    clean = [leaves[i].detach() for i in where]
    before = outputs(clean)
    if not before or any(output.layout is not torch.strided for output in before):
        return
    # A loss of constants, such as the zeros of a triangular factor, has no gradient to contaminate.
    moved = unchanged(before, lambda value: outputs([t * value + 0.01 for t in clean]), (0.97,))
    varying = [b.masked_fill(still, torch.nan) for b, still in zip(before, moved, strict=True)] if moved else before
    for number, tensor in enumerate(clean):
        for part_name, part in parts(tensor):

            def replaced(value: float, number: int = number, part: Tensor = part) -> list[Tensor]:
                return [t.masked_fill(part, value) if i == number else t for i, t in enumerate(clean)]

            for poison_name, poison in POISONS.items():
                # Other numbers in the poison's place tell outputs that only happen not to change.
                selected = unchanged(varying, lambda value: outputs(replaced(value)), (poison, *OTHERS))  # noqa: B023
                if any(used.any() for used in selected):
                    full_name = f"{name}, input {number}, {part_name} {poison_name}"
                    yield Case(full_name, function, clean, replaced(poison), list(map(replaced, OTHERS)), selected)


def unchanged(
    before: list[Tensor], outputs_with: Callable[[float], list[Tensor]], values: tuple[float, ...]
) -> list[Tensor]:
    """Where all values give the finite outputs from before; nothing when one fails or gives other shapes."""
    selected = [output.isfinite() for output in before]
    for value in values:
        try:
            outputs = outputs_with(value)
        except Exception:
            return []
        if [o.shape for o in outputs] != [b.shape for b in before]:
            return []
        selected = [used & (o == b) for used, o, b in zip(selected, outputs, before, strict=True)]
    return selected


def parts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What is poisoned: half of the rows, half of the columns, one entry."""
    if tensor.numel() < 2:
        return
    for dim in dict.fromkeys((0, tensor.dim() - 1)):
        size = tensor.shape[dim]
        if size > 1:
            part = torch.zeros(tensor.shape, dtype=torch.bool)
            part.narrow(dim, (size + 1) // 2, size // 2).fill_(True)
            yield f"half of dimension {dim}", part
    part = torch.zeros(tensor.shape, dtype=torch.bool)
    part.view(-1)[-1] = True
    yield "last entry", part


def judge(case: Case, gradients: Gradients, tally: Tally) -> None:
    """Compare the poisoned sample's gradient with the clean one's, by plain PyTorch and by `gradients`."""
    wanted, plain = run(torch.autograd.grad, case, case.clean), run(torch.autograd.grad, case, case.poisoned)
    if isinstance(wanted, Exception) or isinstance(plain, Exception) or not is_finite(wanted):
        return
    precise = run(torch.autograd.grad, case, case.clean, torch.float64)
    if isinstance(precise, Exception):
        precise = wanted
    for other in case.others:
        elsewhere = run(torch.autograd.grad, case, other, precise[0].dtype)
        if is_finite(elsewhere) and not same(elsewhere, wanted, precise):
            return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = run(gradients, case, case.poisoned)
    without_rule = {name for w in caught for name in re.findall(r"(\S+) \(.*?\)", str(w.message).partition(": ")[0])}
    contaminated, right = not same(plain, wanted, precise), same(ours, wanted, precise)
    bits = not isinstance(ours, Exception) and all(
        torch.equal(o[p.isfinite()], p[p.isfinite()]) for o, p in zip(ours, plain, strict=True)
    )
    tally.samples += 1
    tally.contaminated += contaminated
    tally.mended += contaminated and right
    tally.broken += not contaminated and not right
    tally.other_bits += not bits
    if not right or not bits:
        tally.without_rule = sorted({*tally.without_rule, *without_rule})
        what = "not mended" if contaminated and not right else "broken" if not right else "other bits"
        why = f"{type(ours).__name__}: {str(ours)[:200]}" if isinstance(ours, Exception) else " ".join(without_rule)
        if not isinstance(ours, Exception) and same(
            [torch.where(p.isfinite(), w, o) for p, w, o in zip(plain, wanted, ours, strict=True)], wanted, precise
        ):
            why += "(only where plain PyTorch's gradient is finite, and so is kept)"
        tally.notes.append(f"{what}: {case.name} {why}")


def run(
    method: Gradients, case: Case, start: list[Tensor], dtype: torch.dtype = torch.float32
) -> list[Tensor] | Exception:
    """The gradients of the case's loss, zeros where an input is not used."""
    tensors = [tensor.to(dtype, copy=True).requires_grad_() for tensor in start]
    try:
        return list(method(case.loss(tensors), tensors, allow_unused=True, materialize_grads=True))
    except Exception as error:
        return error


def is_finite(gradients: list[Tensor] | Exception) -> bool:
    """Whether there is a number for every entry."""
    return not isinstance(gradients, Exception) and all(bool(g.isfinite().all()) for g in gradients)


def same(a: list[Tensor] | Exception, *wanted: list[Tensor]) -> bool:
    """Each entry one of those wanted, but for round-off: the clean input may go through another algorithm."""
    if isinstance(a, Exception):
        return False
    return all(
        bool(torch.stack([torch.isclose(x.double(), y.double(), rtol=1e-3, atol=1e-5) for y in ys]).any(0).all())
        for x, *ys in zip(a, *wanted, strict=True)
    )


def mended(project: Project) -> None:
    """Measure all operators, print those that are not mended, and write `results/measured/mended.json`."""
    started = time.monotonic()
    tallies = measure_all(operators())
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "samples_of_an_operator": SAMPLES,
        "rows": [asdict(tally) for tally in tallies],
    }
    suffix = "" if torch.__version__.startswith("2.13") else f"-torch-{torch.__version__.split('+')[0]}"
    path = project.results / "measured" / f"mended{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    write(path, json.dumps(content, indent=1) + "\n")
    print(f"written: {path.relative_to(project.root)}, after {time.monotonic() - started:.0f} s")


def measure_all(chosen: list[Any], samples: int = SAMPLES) -> list[Tally]:
    """Each operator in a process of its own: a poisoned sample can crash a library below PyTorch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tallies = []
    with ThreadPoolExecutor(2) as pool:
        for tally in pool.map(_in_a_process, chosen, repeat(samples)):
            tallies.append(tally)
            if tally.notes:
                print(f"\r{_line(tally)}\n    " + "\n    ".join(tally.notes[:: max(1, len(tally.notes) // 3)][:4]))
            if sys.stdout.isatty():
                print(f"\r{len(tallies)} of {len(chosen)} operators", end="", flush=True)
    total = Tally("\rall operators")
    for count in ("samples", "contaminated", "mended", "broken", "other_bits"):
        setattr(total, count, sum(getattr(tally, count) for tally in tallies))
    print(_line(total))
    return tallies


def _line(tally: Tally) -> str:
    return (
        f"{tally.operator}: {tally.samples} samples, {tally.contaminated} contaminated, {tally.mended} mended, "
        f"{tally.broken} broken, {tally.other_bits} with other bits"
    )


def _in_a_process(op: Any, samples: int) -> Tally:
    found: Tally | str = apart(lambda: measure(op, samples=samples), SECONDS)
    return Tally(name_of(op), notes=[found]) if isinstance(found, str) else found


if __name__ == "__main__":  # some operators by name, for whoever adds a rule
    measure_all([op for op in operators() if op.name in sys.argv[1:] or name_of(op) in sys.argv[1:]])
