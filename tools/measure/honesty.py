"""Whether `ignoring` hides an undefined gradient, measured on PyTorch's own operator database: the opposite of `fixed`.

If the loss uses an element whose gradient is undefined, the gradient must stay undefined. To produce such elements,
each operator gets the input `x + sqrt(z)` with z = 0. Its value is x, and its derivative with respect to z is infinite.
So plain PyTorch's gradient with respect to z is not finite at any element, for every cotangent, even zero. Our gradient
may be finite only at elements that the loss does not use.

`uses` finds out whether the loss uses an element. If plain PyTorch's gradient is finite, our gradient must have the
same bits, strides and type.
"""

from __future__ import annotations

import html
import itertools
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from helpers import show
from zero_or_nan import ignoring
from zero_or_nan.selfcheck.poisoned import database, name_of

from ..project import Project
from .apart import all_apart, counted, totals
from .fixed import called
from .records import keep_swept, prose
from .uses import Probe, cases, forms, same_bits, steep, weighted

SAMPLES = 6
"""How many samples of each operator are measured. They are spread over the first samples of the database."""
FIRST = 60
"""How many of the database's first samples these are chosen from."""
MOST_ELEMENTS = 500
"""The most elements that an input of a small sample may have."""
SECONDS = 240
"""The most seconds that one operator may take."""
PROBES = 8
"""How many elements of each gradient are tested for use, of the elements that would be hidden if the loss used them."""
NOTES = 8
"""How many violations of an operator are described. The others are only counted."""
UNINITIALISED = frozenset({"empty_like", "new_empty", "new_empty_strided"})
"""Operators whose result is uninitialized memory."""

COUNTS = ("cases", "undefined", "hidden", "other_bits", "other_strides", "exceptions", "failed")
VIOLATIONS = COUNTS[2:]


@dataclass
class Tally:
    """The counts of one operator's cases.

    `cases`: gradients that plain PyTorch could compute. `undefined`: elements at which plain PyTorch's gradient is not
        finite. `hidden`: used elements at which our gradient is finite, among the elements that were tested for use.
        The other counts are of gradients. `other_bits`: our gradient has other bits although plain PyTorch's is finite.
        `other_strides`: other strides or another type. `exceptions`: an exception that plain PyTorch does not raise, or
        a bug that became a warning. `failed` is 1 if the operator's process did not finish.
    """

    operator: str
    cases: int = 0
    undefined: int = 0
    hidden: int = 0
    other_bits: int = 0
    other_strides: int = 0
    exceptions: int = 0
    failed: int = 0
    notes: list[str] = field(default_factory=list)

    def violation(self, what: str, note: str) -> None:
        """Count one violation, and keep the first notes."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.notes) < NOTES:
            self.notes.append(f"{what.replace('_', ' ')}: {note}")

    @property
    def is_honest(self) -> bool:
        return not any(getattr(self, what) for what in VIOLATIONS)


def operators() -> list[Any]:
    """The operators of the database that take float32, also operators without a derivative: a hook may call them."""
    return [op for op in database() if torch.float32 in op.supported_dtypes("cpu")]


def measure(op: Any, samples: int = SAMPLES) -> Tally:
    """Tally the cases of one operator."""
    tally = Tally(name_of(op))
    has_derivative = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for number, sample in enumerate(chosen(op, samples, has_derivative)):
            name = f"sample {number}"
            if has_derivative:
                for form in forms(op, sample, number):
                    for case in cases(form, name, tally.operator):
                        judge(case, tally)
            judge_hook(op, sample, name, tally)
    return tally


def chosen(op: Any, samples: int, has_derivative: bool) -> list[Any]:
    """Some samples of an operator, small samples if it has any; none if this machine can't make them."""
    try:
        first = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=has_derivative), FIRST))
    except Exception:
        return []

    def is_small(sample: Any) -> bool:
        tensors = (leaf for leaf in tree_leaves((sample.input, sample.args)) if isinstance(leaf, Tensor))
        return all(tensor.numel() <= MOST_ELEMENTS for tensor in tensors)

    first = list(filter(is_small, first)) or first
    count = min(samples, len(first))
    return [first[i * len(first) // count] for i in range(count)]


def judge(case: Probe, tally: Tally) -> None:
    """Compare our gradient with plain PyTorch's on the same graph, and count violations."""
    xs = [x.clone().requires_grad_() for x in case.start]
    zs = [torch.zeros_like(x).requires_grad_() for x in case.start]
    try:
        inputs = [steep(x, z) for x, z in zip(xs, zs, strict=True)]
        if case.form.writes_zeros:
            for y in inputs:
                y.register_hook(lambda cotangent: cotangent.masked_fill(_third(cotangent), 0))
        loss = weighted(case.form.function(inputs), case.selected)
        leaves = [*xs, *zs]
        plain = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    except Exception:
        return
    ours = attempt(tally, case.name, lambda: ignoring.grad(loss, leaves, allow_unused=True))
    tally.cases += 1
    if ours is not None:

        def hides(number: int, entry: int, gradient: float) -> bool:
            by_x = number < len(xs)  # for z, no finite number is right
            number %= len(xs)
            return case.uses(number, entry) and not (by_x and case.grows_by(number, entry, gradient))

        compare(case.name, plain, ours, hides, len(xs), tally)


def _third(tensor: Tensor) -> Tensor:
    """True at every third element."""
    return torch.arange(tensor.numel()).reshape(tensor.shape) % 3 == 0


def attempt(tally: Tally, name: str, ours: Callable[[], Any]) -> Any:
    """Our gradients; None if they raise, which is a violation. An error in a rule becomes a warning, and counts too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = ours()
        except Exception as error:
            tally.violation("exceptions", f"{name}: {type(error).__name__}: {str(error)[:200]}")
            return None
    for warning in caught:
        if "ignoring failed at" in str(warning.message):
            tally.violation("exceptions", f"{name}: {str(warning.message).partition(', which')[0][:200]}")
    return result


def compare(
    name: str, plain: Any, ours: Any, hides: Callable[[int, int, float], bool], inputs: int, tally: Tally
) -> None:
    """Count what our gradients hide or change: first the gradients for the inputs, then the gradients for z."""
    for number, (p, o) in enumerate(zip(plain, ours, strict=True)):
        of = f"{name}, gradient by {'zx'[number < inputs]} of input {number % inputs}"
        if p is None or o is None:
            if p is not o:
                tally.violation("other_strides", f"{of}: {type(o).__name__} for {type(p).__name__}")
            continue
        if p.layout is not torch.strided:
            continue
        if type(o) is not Tensor or (o.dtype, o.shape, o.stride()) != (p.dtype, p.shape, p.stride()):
            kinds = [f"{type(g).__name__} {g.dtype} {tuple(g.shape)} {g.stride()}" for g in (o, p)]
            tally.violation("other_strides", f"{of}: {' for '.join(kinds)}")
            if o.shape != p.shape or o.dtype != p.dtype:
                continue
        finite = p.isfinite()
        if not bool((same_bits(p, o) | ~finite).all()):
            entry = int((~same_bits(p, o) & finite).reshape(-1).nonzero()[0])
            numbers = [g.reshape(-1)[entry].item() for g in (o, p)]
            tally.violation("other_bits", f"{of}, entry {entry}: {numbers[0]!r} for {numbers[1]!r}")
        tally.undefined += int((~finite).sum())
        suspects = (~finite & o.isfinite()).reshape(-1).nonzero().reshape(-1).tolist()
        step = -(-len(suspects) // PROBES) or 1
        for entry in suspects[::step]:
            numbers = [g.reshape(-1)[entry].item() for g in (o, p)]
            if hides(number, entry, numbers[0]):
                tally.violation("hidden", f"{of}, entry {entry}: {numbers[0]!r} for {numbers[1]!r}")


def judge_hook(op: Any, sample: Any, name: str, tally: Tally) -> None:
    """Call the operator in a hook on a cotangent with ignored elements. Its result replaces the cotangent."""
    tensors = [leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
    if len(tensors) != 1 or tensors[0] is not sample.input or type(sample.input) is not Tensor:
        return
    x = tensors[0]
    if x.dtype is not torch.float32 or x.layout is not torch.strided or not x.numel() or op.name in UNINITIALISED:
        return
    name = f"{name}, in a hook"
    weights = x.detach()
    taken = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    taken.view(-1)[0] = True

    def called(tensor: Tensor) -> Any:
        torch.manual_seed(0)
        return op(tensor, *sample.args, **sample.kwargs)

    def fits(result: Any) -> bool:
        return isinstance(result, Tensor) and result.shape == x.shape and result.layout is torch.strided

    try:
        one, two = called(weights.clone()), called(weights.clone())
        if not fits(one) or not bool(same_bits(one, two).all()):
            return
    except Exception:
        return

    def hook(cotangent: Tensor) -> Tensor | None:
        with torch.no_grad():
            plainly = cotangent.clone()
            wanted = called(plainly if type(plainly) is Tensor else torch.empty_like(cotangent).copy_(plainly))
            got = called(cotangent)
        kinds = {type(cotangent), type(got)}
        if kinds != {Tensor}:
            tally.violation("other_strides", f"{name}: {' '.join(sorted(kind.__name__ for kind in kinds))}")
        elif got.dtype != wanted.dtype or not bool(same_bits(got, wanted).all()):
            tally.violation("other_bits", f"{name}: the operator's own result")
        return got if got.dtype == cotangent.dtype and not got.requires_grad else None

    x, z = weights.clone().requires_grad_(), torch.zeros_like(weights).requires_grad_()
    try:
        y = steep(x, z)
        y.register_hook(hook)
        loss = torch.where(taken, y * weights, torch.zeros(())).sum()
        plain = torch.autograd.grad(loss, [x, z], retain_graph=True)
    except Exception:
        return
    ours = attempt(tally, name, lambda: ignoring.grad(loss, [x, z]))
    tally.cases += 1
    if ours is not None:
        compare(name, plain, ours, lambda number, entry, _: number == 1 and bool(taken.reshape(-1)[entry]), 1, tally)


def honesty(project: Project, *names: str) -> None:
    """Measure all operators, print those with a violation, and write `results/measured/honesty.json`.

    If operators are named, measure only them, and write nothing.
    """
    tallies = measure_all(called(operators(), names))
    if names:
        return
    content = {"torch": torch.__version__, "samples_of_an_operator": SAMPLES, **totals_and_rows(tallies)}
    keep_swept(project, "honesty", content)


def totals_and_rows(tallies: list[Tally]) -> dict[str, Any]:
    """What is recorded of all operators: their number, their sums, and a row for each operator with a violation."""
    return {
        "operators": len(tallies),
        "totals": totals(tallies, COUNTS),
        "rows": [asdict(tally) for tally in tallies if not tally.is_honest],
    }


def measure_all(chosen: list[Any]) -> list[Tally]:
    """The tallies of all operators, each from its own process: an unusual number can crash a library below PyTorch."""

    def lost(op: Any, why: str) -> Tally:
        return Tally(name_of(op), failed=1, notes=[why])

    def told(tally: Tally) -> str:
        line = counted(tally.operator, totals([tally], COUNTS))
        return "" if tally.is_honest else "\n    ".join([line, *tally.notes[:4]])

    tallies = all_apart(chosen, measure, SECONDS, lost, told)
    print(counted("\rall operators", totals(tallies, COUNTS)))
    return tallies


# On the page.

WHY = {
    "nanmean": (
        "If every element is NaN, `nanmean` drops them all and returns 0/0. No element is left that could have a "
        "gradient."
    ),
    "nn.functional.normalize": (
        "`normalize` divides a row by its norm, which is NaN, and the loss uses a part of the row. The gradient of "
        "an element that the loss does not use has two terms. `ignoring` drops the term that the loss ignores. The "
        "other comes through the norm, from the derivative of `clamp` at NaN, which is 0."
    ),
    "linalg.lu_factor": (
        "`lu_factor` chooses its pivots by comparing numbers. The test puts in a number for which it chooses other "
        "pivots. By our definition, such a number says nothing, because the selection must stay the same."
    ),
    "max_pool2d_with_indices_backward": (
        "The result depends only on the positions of the maxima. If the test changes an element, another position may "
        "be the maximum, so the result changes. But positions are integers, and no gradient goes through integers."
    ),
}
"""Why an operator is in the table."""


def shown(content: dict[str, Any]) -> str:
    """A table of the operators with used elements that came out finite: how many, and why."""
    total, found = content["totals"], content["rows"]
    columns = {"hidden": "elements"} | {what: what.replace("_", " ") for what in VIOLATIONS[1:] if total[what]}
    caption = (
        f"{total['hidden']:,} such elements in {sum(row['hidden'] > 0 for row in found)} of {content['operators']} "
        f"operators, found in {total['cases']:,} gradients (torch {html.escape(content['torch'])})"
    )
    rows = [
        [
            f"<code>{html.escape(row['operator'])}</code>",
            *(f"{row[column]:,}" for column in columns),
            show.with_code(WHY.get(row["operator"], "Not known yet.")),
        ]
        for row in found
    ]
    return prose(show.table(caption, ["operator", *columns.values(), "why"], rows, stack=True))
