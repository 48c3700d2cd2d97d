"""Compares the gradients of a poisoned and a clean sample: a test of `ignoring` that needs no known answer.

The test is metamorphic. It poisons a part of an input with NaN, inf or 3e38. It selects the outputs that don't depend
on this part, by indexing or by `where`, and the loss is a weighted sum of them. The gradient must be that of the clean
input. A sample counts only if harmless numbers in the poison's place leave both those outputs and that gradient as they
were: a product with a zero in it does not change with its other factors, but its gradient does.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..masks.trees import tree_flatten, tree_unflatten

OTHERS = (0.37, -2.5)
"""Harmless numbers in the poison's place."""
POISONS = {"nan": float("nan"), "inf": float("inf"), "3e38": 3e38}
SELECTIONS = ("indexed", "where")
"""How the loss selects outputs: `output[used]`, or `torch.where(used, output, 0)`."""
MOST_ELEMENTS = 100_000
"""The largest number of elements of a sample. Larger samples take minutes, but show no more than small samples."""

Gradients = Callable[..., Any]


@dataclass
class NotFixed:
    """A contaminated sample whose gradient `ignoring` does not get right.

    `finite`: it differs from the right gradient only where plain PyTorch's is finite, so `ignoring` keeps it.
    `failure`: why there is no gradient at all, else empty.
    """

    case: str
    finite: bool = False
    failure: str = ""


@dataclass
class Tally:
    """The poisoned samples of an operator, and their results.

    `contaminated`: plain PyTorch's gradient is not that of the clean input. `crashed`: contaminated samples that ended
    PyTorch's process. `fixed`: contaminated samples with our gradient right. `broken`: plain PyTorch's gradient is
    right, but ours is not. `other_bits`: ours differs where plain PyTorch's gradient is finite. `left_out`: samples
    that are too large.
    """

    operator: str
    samples: int = 0
    contaminated: int = 0
    crashed: int = 0
    fixed: int = 0
    broken: int = 0
    other_bits: int = 0
    left_out: int = 0
    without_rule: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_fixed: list[NotFixed] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count the samples of another tally too."""
        for count in COUNTS:
            setattr(self, count, getattr(self, count) + getattr(other, count))
        self.without_rule = sorted({*self.without_rule, *other.without_rule})
        self.notes += other.notes
        self.not_fixed += other.not_fixed

    def lose(self, case: str, failure: str) -> None:
        """Count a sample as contaminated and not fixed, if it is only known that it failed."""
        self.samples += 1
        self.contaminated += 1
        self.not_fixed.append(NotFixed(case, failure=failure))
        self.notes.append(f"not fixed: {case} {failure}")


COUNTS = ("samples", "contaminated", "crashed", "fixed", "broken", "other_bits", "left_out")


@dataclass
class PoisonedSample:
    """A poisoned sample: a function of differentiable tensors, and these tensors clean, poisoned, and with `OTHERS`."""

    name: str
    function: Callable[[list[Tensor]], list[Tensor]]
    clean: list[Tensor]
    poisoned: list[Tensor]
    others: list[list[Tensor]]
    selected: list[Tensor]
    selection: str = SELECTIONS[0]

    def loss(self, tensors: list[Tensor]) -> Tensor:
        """A weighted sum of the selected outputs. Each element has its own weight."""
        torch.manual_seed(1)
        total = torch.zeros((), device=tensors[0].device)
        for output, used in zip(self.function(tensors), self.selected, strict=True):
            if used.any():
                weights = torch.rand(used.shape).to(used.device)
                if self.selection == "where":
                    chosen = torch.where(used, output, 0)
                else:
                    chosen, weights = output[used], weights[used]
                chosen = chosen.real + 0.5 * chosen.imag if chosen.is_complex() else chosen
                total = total + (chosen * weights).sum()
        return total


def database() -> list[Any]:
    """PyTorch's own operators, each with samples of its inputs.

    Raises:
        ImportError: if a package is missing that PyTorch's tests need, such as numpy or expecttest.
    """
    # On a machine without CUDA's compiler, the import prints a message, and logs it as well.
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            from torch.testing._internal.common_methods_invocations import op_db
    finally:
        logging.disable(logging.NOTSET)
    return list(op_db)


def name_of(op: Any) -> str:
    """The operator's name in the database, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def poisoned(op: Any, samples: int, tally: Tally, device: str = "cpu") -> Iterator[PoisonedSample]:
    """The poisoned samples made from an operator's first samples."""
    for number, sample in zip(range(samples), op.sample_inputs(device, torch.float32, requires_grad=True)):  # noqa: B905
        leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
        if sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)) > MOST_ELEMENTS:
            tally.left_out += 1
        else:
            yield from cases(op, sample, f"sample {number}")


def cases(op: Any, sample: Any, name: str) -> Iterator[PoisonedSample]:
    """The poisoned versions of a sample in which some outputs don't change."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not where or any(leaves[i].layout is not torch.strided for i in where):
        return

    def function(tensors: list[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        floating = [isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves]
        filled = [leaf.to(tensors[0].dtype) if f else leaf for leaf, f in zip(leaves, floating, strict=True)]
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = _viewed_as(leaves[i], tensor)
        first, args, kwargs = tree_unflatten(filled, spec)
        result = sample.output_process_fn_grad(op(first, *args, **kwargs))
        return [r for r in tree_flatten(result)[0] if isinstance(r, Tensor) and r.requires_grad]

    def outputs(tensors: list[Tensor]) -> list[Tensor]:
        return function([tensor.clone().requires_grad_() for tensor in tensors])

    clean = [_whole(leaves[i].detach()) for i in where]
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
                # Other numbers in the poison's place exclude outputs that did not change only by chance.
                selected = unchanged(varying, lambda value: outputs(replaced(value)), (poison, *OTHERS))  # noqa: B023
                if any(used.any() for used in selected):
                    full_name = f"{name}, input {number}, {part_name} {poison_name}"
                    others = list(map(replaced, OTHERS))
                    for selection in SELECTIONS:
                        name_here = f"{full_name}, {selection}"
                        yield PoisonedSample(name_here, function, clean, replaced(poison), others, selected, selection)


def _whole(tensor: Tensor) -> Tensor:
    """What a tensor is a view of, where it views a part of its memory: `as_strided` reads the rest too."""
    memory = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor if memory == tensor.numel() else tensor.as_strided((memory,), (1,), 0)


def _viewed_as(leaf: Tensor, whole: Tensor) -> Tensor:
    """The view of a tensor's memory that a leaf is."""
    if whole.shape == leaf.shape:
        return whole
    return whole.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())


def unchanged(
    before: list[Tensor], outputs_with: Callable[[float], list[Tensor]], values: tuple[float, ...]
) -> list[Tensor]:
    """Where the outputs were finite and are the same for all values; empty if a value fails or changes a shape."""
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
    """The parts to poison: half of the rows, half of the columns, and one element."""
    if tensor.numel() < 2:
        return
    for dim in dict.fromkeys((0, tensor.dim() - 1)):
        size = tensor.shape[dim]
        if size > 1:
            part = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
            part.narrow(dim, (size + 1) // 2, size // 2).fill_(True)
            yield f"half of dimension {dim}", part
    part = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    part.view(-1)[-1] = True
    yield "last entry", part


def judge(case: PoisonedSample, gradients: Gradients, tally: Tally, crash: str = "") -> None:
    """Compare the gradients of the poisoned and the clean sample, with plain PyTorch and with `gradients`.

    `gradients` is called like `torch.autograd.grad`. `crash`: how this sample made plain PyTorch's process die, so that
    only `gradients` runs on it.
    """
    wanted = run(torch.autograd.grad, case, case.clean)
    plain = [] if crash else run(torch.autograd.grad, case, case.poisoned)
    if isinstance(wanted, Exception) or isinstance(plain, Exception) or not is_finite(wanted):
        return
    precise = run(torch.autograd.grad, case, case.clean, torch.float64)
    if isinstance(precise, Exception):
        precise = wanted
    for other in case.others:
        elsewhere = run(torch.autograd.grad, case, other, precise[0].dtype)
        if isinstance(elsewhere, Exception) or not is_finite(elsewhere):
            continue
        if not _independent(elsewhere, wanted, precise):
            return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = run(gradients, case, case.poisoned)
    without_rule = {name for w in caught for name in re.findall(r"(\S+) \(.*?\)", str(w.message).partition(": ")[0])}
    contaminated, right = bool(crash) or not same(plain, wanted, precise), same(ours, wanted, precise)
    # If plain PyTorch adds in another order each time, as some GPU kernels do, there are no bits to keep.
    bits = crash or same_bits(ours, plain) or not same_bits(run(torch.autograd.grad, case, case.poisoned), plain)
    tally.samples += 1
    tally.contaminated += contaminated
    tally.crashed += bool(crash)
    tally.fixed += contaminated and right
    tally.broken += not contaminated and not right
    tally.other_bits += not bits
    if right and bits:
        return
    tally.without_rule = sorted({*tally.without_rule, *without_rule})
    what = "not fixed" if contaminated and not right else "broken" if not right else "other bits"
    failed = f"{type(ours).__name__}: {str(ours)[:200]}" if isinstance(ours, Exception) else ""
    finite = not failed and not crash and same(_where_finite(plain, wanted, ours), wanted, precise)
    remark = " (only where plain PyTorch's gradient is finite, and so is kept)" if finite else ""
    tally.notes.append(f"{what}: {case.name} {failed or ' '.join(without_rule)}{remark}")
    if contaminated and not right:
        tally.not_fixed.append(NotFixed(case.name, finite, failed))


def _where_finite(plain: list[Tensor], wanted: list[Tensor], ours: Any) -> list[Tensor]:
    """Ours, but the wanted numbers where plain PyTorch has finite ones."""
    return [torch.where(p.isfinite(), w, o) for p, w, o in zip(plain, wanted, ours, strict=True)]


def run(
    method: Gradients, case: PoisonedSample, start: list[Tensor], dtype: torch.dtype = torch.float32
) -> list[Tensor] | Exception:
    """The gradients of the case's loss, with zeros for an unused input. Returns an exception if it fails."""
    try:
        tensors = [tensor.to(dtype, copy=True).requires_grad_() for tensor in start]
        return list(method(case.loss(tensors), tensors, allow_unused=True, materialize_grads=True))
    except Exception as error:
        return error


def is_finite(gradients: list[Tensor] | Exception) -> bool:
    """Whether there are gradients, and all elements are finite."""
    return not isinstance(gradients, Exception) and all(bool(g.isfinite().all()) for g in gradients)


def same_bits(a: list[Tensor] | Exception, plain: list[Tensor]) -> bool:
    """Whether each element is equal where plain PyTorch's element is finite."""
    return not isinstance(a, Exception) and all(
        torch.equal(x[p.isfinite()], p[p.isfinite()]) for x, p in zip(a, plain, strict=True)
    )


def same(a: list[Tensor] | Exception, *wanted: list[Tensor]) -> bool:
    """Whether each element is near a wanted one. Round-off differs if the clean input uses another algorithm."""
    if isinstance(a, Exception):
        return False
    return all(
        bool(torch.stack([torch.isclose(_wide(x), _wide(y), rtol=1e-3, atol=1e-5) for y in ys]).any(0).all())
        for x, *ys in zip(a, *wanted, strict=True)
    )


def _independent(elsewhere: list[Tensor], wanted: list[Tensor], precise: list[Tensor]) -> bool:
    """Whether another number in the poison's place left the gradient as it was, but for round-off.

    A product of many small numbers can have a gradient that is small too, and grows with the poison all the same. In
    float64 it is told from round-off, which has the size of the largest entry's last digits.
    """
    if precise is wanted:
        return same(elsewhere, wanted)
    pairs = [(_wide(x), _wide(y)) for x, y in zip(elsewhere, precise, strict=True)]
    largest = max((float(y.abs().max()) for _, y in pairs if y.numel()), default=0.0)
    return all(torch.allclose(x, y, rtol=1e-6, atol=1e-12 * largest) for x, y in pairs)


def _wide(x: Tensor) -> Tensor:
    """In float64, on the CPU: not every device has it."""
    return x.cpu().double()
