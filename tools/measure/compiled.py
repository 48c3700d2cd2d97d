"""How much `ignoring` follows inside compiled regions: nearly all layers and losses of `torch.nn`, for each backend.

Some rows of each batch are NaN or infinite, and the loss leaves them out: by a slice, by `where`, or by `ignore_index`.
The selection is inside the compiled region, or after it. The reference is the gradient of uncompiled plain PyTorch for
the same batch, with finite rows in place of the bad rows. Another loss uses all rows. In that case, a NaN may become a
number only if it also does in uncompiled code.

A program runs with cold caches, again after a plain pass, and again after a new compilation with warm caches. The worst
run counts. Each layer and each loss has a separate process. If the process dies, the layer or loss has failed.
"""

from __future__ import annotations

import html
import importlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers import show
from helpers.releases import number
from zero_or_nan import ignoring

from ..project import Project, named
from .apart import all_apart
from .records import RELEASE, keep, prose, read

TESTS = Path(__file__).parents[2] / "tests"
"""The tests of uncompiled layers have the table of layers."""

BACKENDS = ("aot_eager", "aot_eager_decomp_partition", "inductor")
"""`inductor` needs a C++ compiler, and takes by far the longest."""
BAD = ("nan", "inf")
SECONDS = 900
"""The most seconds that one layer or loss may take."""

OUTCOMES = {
    "hidden": "the loss uses all rows, and a gradient is finite that is NaN in uncompiled code and in plain PyTorch",
    "silent": "the gradient is wrong, and no warning says so",
    "other bits": "plain PyTorch's compiled gradient is finite, and that of ignoring has other bits",
    "failed": "the program raised an error, its process died, or it did not end",
    "warned": "the gradient is contaminated by the bad rows, and a warning says so",
    "refused": "plain PyTorch, uncompiled, raises an error for the bad rows",
    "miscompiled": "compiling alone changes plain PyTorch's gradient, and ignoring returns the changed gradient",
    "right": (
        "if the loss leaves the bad rows out, the gradient equals that of uncompiled PyTorch on finite rows. If the "
        "loss uses all rows, the compiled gradient is NaN wherever the uncompiled gradient is"
    ),
}
"""The possible outcomes for a program with one kind of bad rows, the worst first, and what they mean."""
NAMES = {"miscompiled": "changed by compiling"}
"""The names of outcomes on the page, if they have other names there."""
VIOLATIONS = ("hidden", "silent", "other bits", "failed")

Region = Callable[[Any], Any]
"""A function that compiles a function, or returns it unchanged."""


class Program(NamedTuple):
    """A loss of some tensors.

    Attributes:
        name: how the loss leaves out the bad rows.
        of: makes the loss, a function of the tensors. Its argument is applied to the region, and may compile it.
        given: the tensors.
        rows: the number of good rows. If the loss uses all rows, it uses the bad rows too.
        parameters: the other tensors that get a gradient.
    """

    name: str
    of: Callable[[Region], Callable[[Sequence[Tensor]], Tensor]]
    given: list[Tensor]
    rows: int
    parameters: list[nn.Parameter]


# The programs.


def _selections(rows: int) -> dict[str, Callable[[Tensor], Tensor]]:
    def deselected(terms: Tensor) -> Tensor:
        return torch.where((torch.arange(len(terms)) < rows).view(-1, *[1] * (terms.dim() - 1)), terms, 0.0)

    return {"sliced": lambda terms: terms[:rows], "deselected": deselected}


def of_layer(name: str) -> Iterator[Program]:
    """The programs of a layer. The selection is inside the region, or after it."""
    table = _table()
    make, shape, out, inputs = table.LAYERS[name]
    torch.manual_seed(0)
    module: nn.Module = make()
    given, rows = [torch.randn(shape) for _ in range(inputs)], shape[0] // 2
    targets = [torch.tensor([0, 3, 5, 2])] if name == "AdaptiveLogSoftmaxWithLoss" else []

    def layer(leaves: Sequence[Tensor]) -> Any:
        return out(module(*leaves, *targets))

    with torch.no_grad():
        weights = torch.rand_like(layer(given))

    def inside(select: Any, compile: Region) -> Any:
        return compile(lambda leaves: select(layer(leaves) * weights).sum())

    def behind(select: Any, compile: Region) -> Any:
        region = compile(layer)
        return lambda leaves: select(region(leaves) * weights).sum()

    parameters = list(module.parameters())
    for kind, select in _selections(rows).items():
        yield Program(kind, partial(inside, select), given, rows, parameters)
        yield Program(f"{kind} behind the region", partial(behind, select), given, rows, parameters)
    yield Program("all used", partial(inside, lambda terms: terms), given, rows, parameters)


class Loss(NamedTuple):
    """A loss of `torch.nn`: of which targets, for how many predictions, and how it is called with them."""

    targets: Sequence[Tensor] = ()
    predictions: int = 1
    call: Callable[..., Tensor] = lambda module, *arguments: module(*arguments)
    prepared: Callable[[Tensor], Tensor] = lambda prediction: prediction
    width: int = 5


IGNORE = -100
"""The default `ignore_index` of PyTorch's losses."""


def losses() -> dict[str, Loss]:
    """Every loss of `torch.nn`. A linear layer makes the prediction, which has four rows."""
    torch.manual_seed(0)
    signs, unit, number = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.rand(4, 5), torch.arange(4)
    classes = torch.tensor([[0, 2, -1, 0, 0]] * 4)
    kinds = {"same": unit, "unit": unit, "sign": signs[:, None].expand(4, 5), "class": number, "classes": classes}

    def ctc(module: nn.Module, prediction: Tensor, targets: Tensor) -> Any:
        steps = prediction.view(len(prediction), 6, 5).log_softmax(-1).transpose(0, 1)
        return module(steps, targets, *(torch.full((len(prediction),), length) for length in (6, 2)))

    return {
        **{name: Loss([kinds[kind]]) for name, kind in _table().LOSSES.items()},
        "BCELoss": Loss([unit], prepared=torch.sigmoid),
        "NLLLoss": Loss([number], prepared=lambda prediction: prediction.log_softmax(1)),
        "CosineEmbeddingLoss": Loss([signs], 2),
        "MarginRankingLoss": Loss([kinds["sign"]], 2),
        **dict.fromkeys(("TripletMarginLoss", "TripletMarginWithDistanceLoss"), Loss((), 3)),
        "GaussianNLLLoss": Loss([unit, unit + 0.5]),
        "CTCLoss": Loss([torch.tensor([[1, 2], [3, 4], [2, 1], [4, 3]])], call=ctc, width=30),
    }


def of_loss(name: str) -> Iterator[Program]:
    """The programs of a loss, for each reduction. Rows are left out before the loss, after it, or by `ignore_index`."""
    loss = losses()[name]
    torch.manual_seed(0)
    linear, rows = nn.Linear(3, loss.width), 2
    given, parameters = [torch.randn(4, 3) for _ in range(loss.predictions)], list(linear.parameters())
    for reduction in ("none", "mean", "sum"):
        module = getattr(nn, name)(reduction=reduction)

        def terms(leaves: Sequence[Tensor], before: Any, targets: Any, module: nn.Module = module) -> Tensor:
            predictions = [before(loss.prepared(linear(leaf))) for leaf in leaves]
            return loss.call(module, *predictions, *targets)

        def after(select: Any, compile: Region, terms: Any = terms) -> Any:
            return compile(lambda leaves: select(terms(leaves, lambda p: p, loss.targets)).sum())

        def before(select: Any, targets: Any, compile: Region, terms: Any = terms) -> Any:
            return compile(lambda leaves: terms(leaves, select, targets).sum())

        def program(kind: str, of: Any, reduction: str = reduction) -> Program:
            return Program(f"{reduction}, {kind}", of, given, rows, parameters)

        for kind, select in _selections(rows).items():
            kept = [target[:rows] for target in loss.targets] if kind == "sliced" else loss.targets
            yield program(kind, partial(after, select) if reduction == "none" else partial(before, select, kept))
        if hasattr(module, "ignore_index"):
            target = loss.targets[0].clone()
            target[rows:] = IGNORE
            yield program("ignore_index", partial(before, lambda p: p, [target]))
        yield program("all used", partial(after, lambda t: t))


def names() -> list[str]:
    """All layers, then all losses."""
    return [*_table().LAYERS, *losses()]


def _table() -> Any:
    for folder in (TESTS, TESTS / "zero_or_nan" / "ignoring"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module("test_modules")


# The outcomes.


def measure(name: str, backend: str) -> dict[str, str]:
    """The outcome of each program of a layer or loss, with each kind of bad rows."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    if backend == "inductor":
        ignoring.follow_compiled()
    with warnings.catch_warnings(action="ignore"):
        for program in of_layer(name) if name in _table().LAYERS else of_loss(name):
            try:
                found |= judged(program, backend)
            except Exception as error:
                lost = f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
                found |= {f"{program.name}, {bad}": lost for bad in BAD}
    return found


def judged(program: Program, backend: str) -> dict[str, str]:
    """The outcome of a program, with each kind of bad rows.

    Raises:
        Exception: if the program can't be compiled, or can't run.
    """
    import torch._dynamo  # here and not above, because these imports take seconds, and pages only show the record
    import torch._inductor.config as inductor

    plain, compile = torch.autograd.backward, partial(torch.compile, backend=backend)
    uncompiled = program.of(lambda function: function)
    wanted = gradients(plain, uncompiled, program, program.given)
    if not all(bool(gradient.isfinite().all()) for gradient in wanted):
        raise ValueError("the gradient is not finite for finite rows")
    runs: dict[str, list[str]] = {}
    with inductor.patch(fallback_random=True):  # with it, pooling and dropout draw the same numbers as uncompiled code
        for _ in ("the caches are cold", "they are warm"):
            torch._dynamo.reset()
            compiled = program.of(compile)
            for run in ("before a plain pass", "after it"):
                for bad in BAD:
                    spoiled = _table().spoiled(program.given, program.rows, float(bad))
                    outcome = _outcome(program, uncompiled, compiled, spoiled, wanted)
                    runs.setdefault(f"{program.name}, {bad}", []).append(outcome)
                if run == "before a plain pass":
                    before, ours = (
                        gradients(by, compiled, program, program.given) for by in (plain, ignoring.backward)
                    )
                    if not all(map(torch.equal, before, ours)):
                        runs[f"{program.name}, {BAD[0]}"].append("other bits")
    return {case: min(outcomes, key=[*OUTCOMES].index) for case, outcomes in runs.items()}


def _outcome(program: Program, uncompiled: Any, compiled: Any, spoiled: list[Tensor], wanted: list[Tensor]) -> str:
    plain = torch.autograd.backward
    try:
        gradients(plain, uncompiled, program, spoiled)
    except Exception:
        return "refused"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours = gradients(ignoring.backward, compiled, program, spoiled)
    theirs = gradients(plain, compiled, program, spoiled)
    if not all(torch.equal(a[b.isfinite()], b[b.isfinite()]) for a, b in zip(ours, theirs, strict=True)):
        return "other bits"
    if program.name.endswith("all used"):
        wanted = gradients(ignoring.backward, uncompiled, program, spoiled)
        became = [a.isfinite() & ~b.isfinite() for a, b in zip(ours, wanted, strict=True)]
        if any(bool((here & ~a.isfinite()).any()) for here, a in zip(became, theirs, strict=True)):
            return "hidden"
        return "miscompiled" if any(map(torch.any, became)) else "right"
    if _table().agree(ours, wanted):
        return "right"
    alike = gradients(plain, compiled, program, program.given)
    if _table().agree(ours, alike):
        return "miscompiled"
    return "warned" if any(str(each.message).startswith("ignoring") for each in told) else "silent"


def gradients(backward: Any, loss: Any, program: Program, given: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all parameters and tensors. Random numbers are the same in each call."""
    torch.manual_seed(0)
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    for parameter in program.parameters:
        parameter.grad = None
    backward(loss(leaves))
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in (*program.parameters, *leaves)]


def measure_all(chosen: Sequence[str], backend: str) -> dict[str, dict[str, str]]:
    """The outcomes of each layer or loss, measured in a separate process. Prints each outcome that is not right."""

    def told(found: tuple[str, dict[str, str]]) -> str:
        rest = {case: outcome for case, outcome in found[1].items() if outcome != "right"}
        return f"{backend}, {found[0]}: {rest}" if rest else ""

    def lost(name: str, why: str) -> tuple[str, dict[str, str]]:
        return name, {"all programs": f"failed: {why}"}

    return dict(all_apart(chosen, lambda name: (name, measure(name, backend)), SECONDS, lost, told))


# The record.


def compiled(project: Project, *chosen: str) -> int:
    """Measure everything under the named backends, or under all, and write `results/measured/compiled.json`.

    If layers or losses are named too, measure only them, and write nothing. Return 1 if an outcome is a violation.
    """
    every = names()
    chosen = tuple(named(chosen, [*BACKENDS, *every], "backend, layer or loss"))
    some = [name for name in chosen if name in every]
    violations = 0
    for backend in [name for name in chosen if name in BACKENDS] or BACKENDS:
        found = measure_all(some or every, backend)
        counts = tally(found)
        print(f"torch {RELEASE}, {backend}: {dict(counts)}")
        violations += sum(counts[outcome] for outcome in VIOLATIONS)
        if not some:
            add(project, RELEASE, backend, found)
    return int(violations > 0)


def tally(found: dict[str, dict[str, str]]) -> Counter[str]:
    """How many programs had each outcome."""
    return Counter(outcome.partition(":")[0] for outcomes in found.values() for outcome in outcomes.values())


def add(project: Project, release: str, backend: str, found: dict[str, dict[str, str]]) -> Path:
    """Put the outcomes for a backend and a release into the record, in place of earlier outcomes; return the file.

    The record has a row of counts for layers and a row of counts for losses. Each layer or loss with an exception also
    has a row.
    """
    known = read(project, "compiled")
    here = {"torch": release, "backend": backend}
    layers = _table().LAYERS
    rows: dict[str, list[dict[str, Any]]] = {"totals": [], "exceptions": []}
    for kind, are_layers in (("layers", True), ("losses", False)):
        some = {name: outcomes for name, outcomes in found.items() if (name in layers) is are_layers}
        counts = tally(some)
        numbers = {outcome: counts[outcome] for outcome in reversed(OUTCOMES)}
        rows["totals"].append({**here, "of": kind, "names": len(some), **numbers})
    for name, outcomes in found.items():
        by_outcome: dict[str, list[str]] = {}
        for case, outcome in outcomes.items():
            if outcome != "right":
                by_outcome.setdefault(outcome, []).append(case)
        if by_outcome:
            rows["exceptions"].append({**here, "name": name, **by_outcome})
    for key, added in rows.items():
        added += [row for row in known.get(key, []) if {**row, **here} != row]
        added.sort(key=lambda row: (number(row["torch"]), BACKENDS.index(row["backend"])))
    return keep(project, "compiled", rows)


# On the page.


def shown(content: dict[str, Any]) -> str:
    """A table of the outcomes of the programs, by release and backend; what they mean, and which layers have them."""
    totals = content["totals"]
    counts = {outcome: sum(row[outcome] for row in totals) for outcome in reversed(OUTCOMES)}
    shown = [outcome for outcome, count in counts.items() if count]
    caption = f"Of {sum(counts.values()):,} compiled programs with bad rows, "
    caption += ", ".join(f"{counts[outcome]:,} are {NAMES.get(outcome, outcome)}" for outcome in shown)
    having: dict[str, list[str]] = {}
    for row in content["exceptions"]:
        for outcome, _ in cases_by_outcome(row):
            names = having.setdefault(outcome.partition(":")[0], [])
            names += [] if row["name"] in names else [row["name"]]
    meanings = []
    for outcome in shown:
        places = ", ".join(f"<code>{html.escape(name)}</code>" for name in having.get(outcome, []))
        found = f" This happens in some programs of {places}." if places else ""
        meanings.append(f"<li><em>{NAMES.get(outcome, outcome).capitalize()}</em>: {OUTCOMES[outcome]}.{found}</li>")
    never = (
        ""
        if any(counts[outcome] for outcome in VIOLATIONS)
        else "<p>Each wrong gradient came with a warning, except those that compiling alone changed.</p>"
    )
    lines = [
        [f"{html.escape(row['torch'])}, <code>{html.escape(row['backend'])}</code>", f"{row['names']} {row['of']}"]
        + [str(sum(row[each] for each in OUTCOMES)), *(str(row[each]) for each in shown)]
        for row in totals
    ]
    head = ["PyTorch, backend", "layers or losses", "programs", *(NAMES.get(outcome, outcome) for outcome in shown)]
    return prose(show.table(caption, head, lines), f"<ul>{''.join(meanings)}</ul>{never}")


def cases_by_outcome(row: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Each outcome of a program that is not right, with the cases that have it."""
    return [(outcome, cases) for outcome, cases in row.items() if outcome not in ("torch", "backend", "name")]
