"""Whether `ignoring` hides an undefined gradient, measured on PyTorch's own operator database: the opposite of `fixed`.

If the loss uses an element whose gradient is undefined, the gradient must stay undefined. To produce such elements,
each operator gets the input `x + sqrt(z)` with z = 0. Its value is x, and its derivative with respect to z is infinite.
So plain PyTorch's gradient with respect to z is not finite at any element, for every cotangent, even zero. Our gradient
may be finite only at elements that the loss does not use.

The forward function alone decides whether the loss uses an element. The loss does not use the element if no other
number in its place changes a bit of the result. If plain PyTorch's gradient is finite, our gradient must have the same
bits, strides and type.
"""

from __future__ import annotations

import html
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from helpers import show
from zero_or_nan import ignoring
from zero_or_nan.selfcheck.poisoned import database, name_of

from ..project import Project
from .apart import all_apart, counted, totals
from .fixed import called
from .records import keep_swept, prose

SAMPLES = 6
"""How many samples of each operator are measured. They are spread over the first samples of the database."""
FIRST = 60
"""How many of the database's first samples these are chosen from."""
MOST_ELEMENTS = 500
"""The most elements that an input of a small sample may have."""
SECONDS = 240
"""The most seconds that one operator may take."""
INPUTS = 3
"""How many inputs of a sample get a number put into them."""
PROBES = 8
"""How many elements of each gradient are tested for use, of the elements that would be hidden if the loss used them."""
NOTES = 8
"""How many violations of an operator are described. The others are only counted."""
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "zero": 0.0}
"""The numbers that are put into one element of an input."""
OTHERS = (math.nan, 0.37, 0.9, -2.5)
"""The numbers that replace an element to find out whether the loss uses it."""
SELECTING = frozenset(
    """
    _segment_reduce.lengths _segment_reduce.offsets amax amin aminmax argsort clamp clamp_max clamp_min copysign
    corrcoef cummax cummin fmax fmin grid_sampler_2d grid_sampler_3d index_reduce.amax index_reduce.amin kthvalue
    linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.matrix_norm linalg.norm linalg.norm.subgradients_at_zero
    linalg.vector_norm logdet logit masked.amax masked.amin masked.median masked.normalize max.binary
    max.reduction_no_dim max.reduction_with_dim maximum median min.binary min.reduction_no_dim min.reduction_with_dim
    minimum mode msort nan_to_num nanmean nanmedian nanquantile nansum nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.cosine_embedding_loss
    nn.functional.embedding_bag nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.grid_sample nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardtanh
    nn.functional.hinge_embedding_loss nn.functional.margin_ranking_loss nn.functional.max_pool1d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.multi_margin_loss
    nn.functional.multilabel_margin_loss nn.functional.normalize nn.functional.poisson_nll_loss nn.functional.prelu
    nn.functional.relu nn.functional.relu6 nn.functional.rrelu nn.functional.softshrink nn.functional.threshold
    nn.functional.triplet_margin_loss nn.functional.triplet_margin_with_distance_loss norm norm.inf quantile renorm
    scatter_reduce.amax scatter_reduce.amin sort topk
    """.split()
)
"""Operators that compare numbers to choose some elements, or rows, of their input, and leave out the others.

The loss does not use the elements that such an operator left out, although NaN in their place would change the result.
Therefore an element of these operators counts as used if a slightly larger and a slightly smaller number both change
the result. If the element is not finite, only the terms of the result that are not finite are compared. For all other
operators, an element is used if NaN in its place changes the result.
"""

FATAL = frozenset({"grid_sampler_2d", "nn.functional.grid_sample"})
"""Operators whose backward crashes in plain PyTorch if an input other than the first has NaN or inf."""
UNINITIALISED = frozenset({"empty_like", "new_empty", "new_empty_strided"})
"""Operators whose result is uninitialized memory."""

Tensors = list[Tensor] | None
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


@dataclass
class Form:
    """A form of calling an operator on a sample: a function of its differentiable inputs, and their initial numbers."""

    name: str
    function: Callable[[list[Tensor]], list[Tensor]]
    start: list[Tensor]
    writes_zeros: bool = False
    """Whether a hook writes zeros into some elements of the inputs' cotangents."""

    def call(self, start: list[Tensor]) -> list[Tensor]:
        """The outputs for these numbers."""
        return self.function([steep(x, torch.zeros_like(x).requires_grad_()) for x in start])

    @cached_property
    def with_derivative(self) -> list[bool]:
        """Which of the outputs have a derivative.

        The sign that is returned with a logarithm has none, but requires grad.
        """
        xs = [x.clone().requires_grad_() for x in self.start]
        outputs = self.function([x * 1 for x in xs])
        alone = [torch.autograd.grad(o, xs, torch.ones_like(o), True, allow_unused=True) for o in outputs]
        return [any(gradient is not None for gradient in gradients) for gradients in alone]


@dataclass
class Probe:
    """A form, the numbers that it is called on, and the elements of its outputs that the loss uses."""

    name: str
    form: Form
    start: list[Tensor]
    selected: list[Tensor]
    chooses: bool
    """Whether the operator compares numbers to choose elements."""

    def seen(self, start: list[Tensor]) -> Tensors:
        """The numbers that the loss uses; None if the operator refuses the input."""
        try:
            outputs = self.form.call(start)
        except Exception:
            return None
        if [o.shape for o in outputs] != [s.shape for s in self.selected]:
            return None
        return [o.detach()[s] for o, s in zip(outputs, self.selected, strict=True)]

    @cached_property
    def now(self) -> Tensors:
        return self.seen(self.start)

    @cached_property
    def before(self) -> Tensors:
        return self.seen(self.form.start)

    def uses(self, number: int, entry: int) -> bool:
        """Whether the loss uses an element of an input. The index of the element is that of the flat input."""
        here = self.start[number].reshape(-1)[entry].item()

        def with_number(value: float) -> Tensors:
            return self.seen(with_entry(self.start, number, entry, value))

        if self.chooses:
            looked_at = None if math.isfinite(here) or self.now is None else [~now.isfinite() for now in self.now]
            return all(_changed(self.now, with_number(value), looked_at) for value in near(here))
        if any(_changed(self.now, with_number(value)) for value in (*OTHERS, *near(here))):
            return True
        # Everything may be NaN because of other elements.
        return _changed(self.before, self.seen(with_entry(self.form.start, number, entry, math.nan)))

    def grows_by(self, number: int, entry: int, slope: float) -> bool:
        """Whether the loss grows with this slope when the element changes in either direction.

        If so, our finite number in place of plain PyTorch's NaN is right: ignored elements had contaminated the
        gradient. Terms that are NaN don't grow. If such a term depends on the element, the sample without the inserted
        number has to grow with this slope. If an input is infinite, the answer is always True. Next to an infinity, a
        number can be right that is the slope at no finite input: 1 / inf is 0.
        """
        if any(bool(x.isinf().any()) for x in self.start):
            return True
        undefined = self.seen(with_entry(self.form.start, number, entry, math.nan))
        if self.now is None or self.before is None or undefined is None:
            return False
        loses = not math.isfinite(self.start[number].reshape(-1)[entry].item()) or _changed(
            self.before, undefined, [~now.isfinite() for now in self.now]
        )
        start, now = (self.form.start, self.before) if loses else (self.start, self.now)
        here = start[number].reshape(-1)[entry].item()

        def is_slope(step: float) -> bool:
            after = self.seen(with_entry(start, number, entry, here + step))
            if after is None:
                return False
            terms = [(a - n).where(a.isfinite() & n.isfinite(), 0) for a, n in zip(after, now, strict=True)]
            return math.isclose(weighted(terms).item() / step, slope, rel_tol=0.1, abs_tol=0.1)

        # The long step makes round-off small. The short step avoids crossing a kink.
        return any(is_slope(step) and is_slope(-step) for step in (0.01 * (1 + abs(here)), 0.001 * (1 + abs(here))))


def steep(x: Tensor, z: Tensor) -> Tensor:
    """The numbers of x if z is 0, with an infinite derivative with respect to z."""
    return x + z.sqrt()


def near(number: float) -> tuple[float, float]:
    """A slightly larger and a slightly smaller number, within the range of float32."""
    if math.isnan(number):
        return 0.37, -2.5
    if math.isinf(number):
        return math.copysign(3e38, number), math.copysign(1e38, number)
    step = 1e-5 + 1e-4 * abs(number)
    return number + step, number - step


def with_entry(tensors: list[Tensor], number: int, entry: int, value: float) -> list[Tensor]:
    """The tensors with another number in one element."""
    changed = tensors[number].clone(memory_format=torch.contiguous_format)
    changed.view(-1)[entry] = value
    laid_out = torch.empty_like(tensors[number]).copy_(changed)
    return [laid_out if i == number else tensor for i, tensor in enumerate(tensors)]


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """True where two tensors hold the same number. All NaNs are the same number; -0.0 and 0.0 are different."""
    if a.is_complex():
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())).all(-1)
    if not a.is_floating_point():
        return a == b
    a, b = a.resolve_neg(), b.resolve_neg()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return (a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())


def _changed(before: Tensors, after: Tensors, looked_at: list[Tensor] | None = None) -> bool:
    """Whether the loss sees another number in one of the terms to look at. False if the operator refused an input."""
    if before is None or after is None:
        return False
    other = [~same_bits(b, a) for b, a in zip(before, after, strict=True)]
    if looked_at is not None:
        other = [o & look for o, look in zip(other, looked_at, strict=True)]
    return any(bool(o.any()) for o in other)


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
    small = [
        sample
        for sample in first
        if max(map(_size, tree_flatten((sample.input, sample.args))[0]), default=0) <= MOST_ELEMENTS
    ]
    first = small or first
    count = min(samples, len(first))
    return [first[i * len(first) // count] for i in range(count)]


def _size(leaf: Any) -> int:
    return leaf.numel() if isinstance(leaf, Tensor) else 0


def forms(op: Any, sample: Any, number: int) -> Iterator[Form]:
    """The forms of a call: out of place, with and without a hook that writes zeros; in place; in place on a slice."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not where or any(leaves[i].layout is not torch.strided or leaves[i].is_complex() for i in where):
        return
    start = [leaves[i].detach() for i in where]

    def called(operator: Any, tensors: list[Tensor]) -> Any:
        torch.manual_seed(0)
        # A copy, because the operator may write to its arguments, such as running statistics.
        filled = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        return operator(first, *args, **kwargs)

    def out_of_place(tensors: list[Tensor]) -> list[Tensor]:
        return differentiable(sample.output_process_fn_grad(called(op, tensors)))

    yield Form("out of place", out_of_place, start)
    yield Form("out of place with a hook", out_of_place, start, writes_zeros=True)
    variant = op.get_inplace()
    if variant is None or where[0] != 0 or leaves[0] is not sample.input or sample.broadcasts_input:
        return
    yield Form("in place", lambda tensors: differentiable(called(variant, tensors)), start)

    dim = 0 if number % 2 == 0 else sample.input.dim()

    def on_a_slice(tensors: list[Tensor]) -> list[Tensor]:
        called(variant, [tensors[0].select(dim, 1), *tensors[1:]])
        return differentiable(tensors[0])

    yield Form("in place on a slice", on_a_slice, [torch.stack([start[0], start[0]], dim), *start[1:]])


def differentiable(result: Any) -> list[Tensor]:
    """The outputs that a loss can take."""
    return [r for r in tree_flatten(result)[0] if isinstance(r, Tensor) and r.requires_grad]


def cases(form: Form, name: str, operator: str) -> Iterator[Probe]:
    """The sample unchanged and with a number put into it, each with all outputs used and with half of them used."""
    starts = {"as it is": form.start}
    for number, tensor in enumerate(form.start[:INPUTS]):
        for what, value in NUMBERS.items():
            if tensor.numel() and (not number or operator not in FATAL or math.isfinite(value)):
                entry = tensor.numel() // 2
                starts[f"{what} in input {number}"] = with_entry(form.start, number, entry, value)
    for what, start in starts.items():
        try:
            outputs = form.call(start)
            form.with_derivative  # noqa: B018  (plain PyTorch may refuse)
        except Exception:
            continue
        if not outputs or any(output.layout is not torch.strided for output in outputs):
            continue
        generator = torch.Generator().manual_seed(0)
        everything = [torch.full(o.shape, has) for o, has in zip(outputs, form.with_derivative, strict=True)]
        half = [every & (torch.rand(every.shape, generator=generator) < 0.5) for every in everything]
        for how_much, selected in (("all", everything), ("half", half)):
            full_name = f"{name}, {form.name}, {what}, {how_much} of the outputs"
            yield Probe(full_name, form, start, selected, operator in SELECTING)


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


def weighted(outputs: list[Tensor], selected: Tensors = None) -> Tensor:
    """A weighted sum of the outputs, or of their selected elements, with a different weight for each element."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for number, output in enumerate(outputs):
        part = output if selected is None or bool(selected[number].all()) else output[selected[number]]
        part = part.real + 0.5 * part.imag if part.is_complex() else part
        weights = torch.rand(part.numel(), generator=generator).reshape(part.shape) + 0.5
        total = total + (part * weights).sum()
    return total


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
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    x = sample.input
    if (
        op.name in UNINITIALISED
        or len(tensors) != 1
        or tensors[0] is not x
        or not x.numel()
        or x.layout is not torch.strided
    ):
        return
    if type(x) is not Tensor or x.dtype is not torch.float32:
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
            wanted = called(
                torch.empty_like(cotangent).copy_(cotangent.clone())
                if type(cotangent) is not Tensor
                else cotangent.clone()
            )
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

    def measured(op: Any) -> Tally:
        try:
            return measure(op)
        except Exception as error:
            return lost(op, f"{type(error).__name__}: {str(error)[:200]}")

    def told(tally: Tally) -> str:
        line = counted(tally.operator, totals([tally], COUNTS))
        return "" if tally.is_honest else "\n    ".join([line, *tally.notes[:4]])

    tallies = all_apart(chosen, measured, SECONDS, lost, told)
    print(counted("\rall operators", totals(tallies, COUNTS)))
    return tallies


# On the page.


def shown(content: dict[str, Any]) -> str:
    """A table of the operators with findings, with the totals of all operators in the foot."""
    columns = ("undefined", "hidden", "other_bits", "exceptions", "failed")
    total = content["totals"]
    found = [row for row in content["rows"] if any(row[column] for column in columns[1:])]
    finite = sum(row["hidden"] > 0 for row in content["rows"])
    caption = (
        f"{total['hidden']} of {total['undefined']:,} undefined elements came out finite, in {finite} operators; "
        f"{total['cases']:,} gradients of {content['operators']} operators were tested; "
        f"torch {html.escape(content['torch'])}"
    )
    head = ["operator", "undefined", "came out finite", *(column.replace("_", " ") for column in columns[2:])]
    rows = [[f"<code>{html.escape(row['operator'])}</code>", *(str(row[c]) for c in columns)] for row in found]
    foot = ["all operators", *(str(total[column]) for column in columns)]
    return prose(show.table(caption, head, rows, foot))
