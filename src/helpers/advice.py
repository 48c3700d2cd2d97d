"""The list of all nodes. It says whether a node can return NaN, why, and what to write.

`zero_or_nan` knows why, from the numbers that a function takes and gives, and the atlas has the points and the code. Of
other nodes, PyTorch's formula and what a node saves say enough. The file `data/advice.toml` holds what these can't say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zero_or_nan.functions.conditions import ALWAYS
from zero_or_nan.functions.graph import function_of
from zero_or_nan.functions.numerics import Numerics, numerics_of
from zero_or_nan.functions.record import FUNCTIONS, UNKNOWN

from . import show
from .atlas import Point, graph_nodes, points_by_node
from .data import load
from .nodes import Node, nodes
from .points import POINTS

_FILE = load("advice")


def _by_node(rows: Sequence[dict[str, str]]) -> dict[str, dict[str, str]]:
    """The rows of the file by the whole name of each node. The file says what each field means, and its default."""
    return {name if "Backward" in name else f"{name}Backward0": row for row in rows for name in row["nodes"].split()}


ADVICE = _by_node(_FILE["advice"])
"""The advice about the nodes that people meet."""

RARE = _by_node(_FILE["rare"])
"""The advice about other nodes of which the rules below know too little."""

CALLS: list[str] = _FILE["calls"]
"""Calls of layers and losses whose nodes have other names."""


class Answer(NamedTuple):
    """Whether a node can return NaN, and why; what to do; and the page about it."""

    why: str
    fix: str = "Find the first NaN or inf: `explain` names its line."
    page: str = "returned-nan-values#find-the-cause"


ONLY_ARRIVES = Answer("Not by itself: only if NaN or inf arrives.")
OR_A_NUMBER = Answer(
    "Not by itself: only if NaN or inf arrives, or if a number in the call is NaN, inf, or a divisor of 0."
)
IS_ZERO = Answer(
    "Never: its gradient is 0 for all inputs.",
    "If you need a gradient, write a function that is not flat.",
    "not-your-case#the-gradient-is-exactly-0",
)
RAISES = Answer(
    "Never: PyTorch has no formula for this derivative, and raises an error instead.",
    "Write the function with others that have a derivative, or detach its argument.",
)
MULTIPLIES = Answer(
    "Yes: it multiplies by a number of the forward pass, and 0 times NaN or inf is NaN.",
    "Find the factor that is NaN or inf, and filter it before the product.",
    "nansum-nanmean#what-to-do",
)
PERHAPS = Answer(
    "Perhaps: it computes with the tensors that the list calls saved, so a NaN or inf in them may spread.",
    "Print them, as `y.grad_fn._saved_self`. If all are finite, look for a point without a slope.",
    "atlas#the-points",
)
_FLAT = re.compile(r"zeros_like\(\w+\)|at::zeros_symint\(\w+\.sym_sizes\(\), grad\.options\(\)\)")
_NO_FORMULA = re.compile(r"not_implemented|error_for_")
_ONLY_SHAPE = (
    r"\b{0}\.(sym_|_nested_tensor_)?(sizes?|strides?|numel|options|layout|scalar_type|dim|blocksize|storage_offsets)\("
    r"|\b(zeros_like|ones_like|reshape_as|TensorGeometry)\({0}\)"
)
"""Parts of a formula that read no number of a tensor."""
_PRODUCT = re.compile(r"\bgrads?(\[\w\])?(\.conj\(\))? [*/] (?!.*(where|masked_fill|sgn|[<>?]))|\* grad$")
_WITHOUT_NAN = {"index", "indices", "mask", "offs", "pivots"}
"""Names of saved tensors that have no NaN, because they are whole numbers or bools."""


def node_names() -> None:
    """Show the nodes that people meet, with advice, and a folded list of all others. The site's search finds each."""
    every = nodes()
    text = "\n".join(f"{node.name}: {', '.join(node.inputs)} of {node.operator}" for node in every.values())
    show.show(show.Item(text, listed(every, made_by())))


def listed(every: Mapping[str, Node], calls: Mapping[str, Sequence[str]]) -> str:
    """The list as HTML. `calls` has the functions whose graphs have a node, by its name."""
    rows = {name: _row(node, calls.get(name, ())) for name, node in every.items()}
    met = answers({name: every[name] for name in sorted(ADVICE) if name in every})
    others = answers({name: node for name, node in every.items() if name not in ADVICE})
    first = "".join(f"<li>{' '.join(rows[name] for name in names)}{answer}</li>" for answer, names in met.items())
    rest = "".join(
        f"<li>{answer}{' '.join(rows[name] for name in others[answer])}</li>" for answer in sorted(others, key=_order)
    )
    count, version = sum(map(len, others.values())), torch.__version__.partition("+")[0]
    title = f"<summary>The {count} other nodes of PyTorch {version} that have a derivative</summary>"
    return f'<ul class="zn-nodes">{first}</ul><details>{title}<ul class="zn-nodes">{rest}</ul></details>'


def _order(answer: str) -> int:
    """The answers that say yes come first."""
    return next(place for place, word in enumerate(("Yes", "Perhaps", "Not", "")) if answer.startswith(f"<p>{word}"))


def _row(node: Node, calls: Sequence[str]) -> str:
    """The node, its function and its outputs. Its name has its own paragraph, because people search for the name."""
    said = [show.code(node.function)] if node.function else []
    if calls:
        said.append(f"also {', '.join(map(show.code, calls))}")
    if node.inputs:
        said.append("outputs: " + ", ".join(f"{number} {show.code(name)}" for number, name in enumerate(node.inputs)))
    if answer(node) is PERHAPS and node.name not in {*ADVICE, *RARE}:
        said.append("saved: " + ", ".join(map(show.code, numbers_in(node))))
    # The search of the site finds this element only if no page is about this name.
    return (
        f'<div class="zn-searched" id="node-{node.name}" data-fallback>'
        f"<p><strong>{node.name}</strong></p> <p>{'; '.join(said)}</p></div>"
    )


def made_by() -> dict[str, list[str]]:
    """The layers and losses in whose graphs a node occurs, by the node's name. Each is run, and its graph is read."""
    found: dict[str, list[str]] = {}
    for call in CALLS:
        function = call.partition("(")[0]
        result = eval(call, {"torch": torch, "F": F, "nn": nn, "t": _tensor, "labels": torch.tensor([0, 1])})
        while isinstance(result, tuple):
            result = result[0]
        for name in {node.name(): None for node in graph_nodes(result)}:
            if name.removesuffix("Backward0") not in _FILE["everywhere"] and function not in found.setdefault(name, []):
                found[name].append(function)
    return found


def _tensor(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape).requires_grad_()


def answers(every: Mapping[str, Node]) -> dict[str, list[str]]:
    """The answers for these nodes, as HTML, each with the names of its nodes."""
    points = points_by_node([point for group in POINTS.values() for point in group])
    found: dict[Answer, list[str]] = {}
    for name, node in every.items():
        row = ADVICE.get(name) or RARE.get(name)
        given = answer(node)
        if row:
            instead = f"Write `{points[name][0].instead}`." if name in points and name in ADVICE else given.fix
            known = numerics_of(node.public)
            page = row.get("page") or known.points or known.section or given.page
            given = Answer(row.get("why") or given.why, row.get("fix") or instead, page)
        found.setdefault(given, []).append(name)
    return {
        _html(said, {point.anchor: point for name in names for point in points.get(name, ())}): names
        for said, names in found.items()
    }


def answer(node: Node) -> Answer:
    """Whether a node can return NaN, and why, from what is known of its function, its formulas, and what it saves."""
    known, record = numerics_of(node.public), FUNCTIONS.get(function_of(node.name), UNKNOWN)
    formulas = [formula.partition(" #")[0] for formula in node.formulas.values()]
    if formulas and all(map(_NO_FORMULA.match, formulas)):
        return RAISES
    if formulas and all(map(_FLAT.fullmatch, formulas)):
        return IS_ZERO
    page = known.points or known.section or ONLY_ARRIVES.page
    if math.isfinite(known.domain[0]):
        return Answer(_steep(known), "Keep the argument away from these numbers, as by `clamp`.", page)
    names = [argument.name for argument in node.arguments]
    divisor = known.divisor([None] * len(names)) if known.pole else None
    if divisor is not None:
        why = f"Yes: if `{names[divisor]}` is 0, neither the value nor the slope is finite."
        return Answer(why, "Replace the divisor before you divide.", page)
    if known.ignores_infinity:
        return Answer("Yes: if all elements of a row are −inf.", page=page)
    saved = numbers_in(node)
    if record.safe_if == ALWAYS or node.operator and not saved:
        return OR_A_NUMBER if record.safe_if != ALWAYS and _takes_a_number(node) else ONLY_ARRIVES
    if known.products or any(map(_PRODUCT.search, formulas)):
        return MULTIPLIES
    return PERHAPS


def _steep(known: Numerics) -> str:
    low, high = known.domain
    outside = f"outside of {low:g} to {high:g}" if math.isfinite(high) else f"below {low:g}"
    ends = " and ".join(f"{end:g}" for end in known.steep_at)
    steep = f"at {ends} the slope is infinite, and 0 times this slope is NaN"
    return f"Yes: {steep}. {outside.capitalize()} the value is NaN.".replace("-", "−")


def numbers_in(node: Node) -> list[str]:
    """The saved tensors whose numbers the derivative may compute with, by their names."""
    saved = [name for name in dir(getattr(torch._C._functions, node.name, None)) if name.startswith("_raw_saved_")]
    formulas = " ".join(node.formulas.values())
    names = [name.removeprefix("_raw_saved_") for name in saved]
    return [
        name
        for name in names
        if name not in _WITHOUT_NAN and re.search(rf"\b{name}\b(?!\()", re.sub(_ONLY_SHAPE.format(name), "", formulas))
    ]


def _takes_a_number(node: Node) -> bool:
    """Whether a formula uses a number that the program passed, such as a factor."""
    numbers = [argument.name for argument in node.arguments if "number" in str(argument.type)]
    return any(re.search(rf"\b{name}\b", formula) for name in numbers for formula in node.formulas.values())


def _html(said: Answer, points: Mapping[str, Point]) -> str:
    links = [show.link(f"atlas#{anchor}", point.name) for anchor, point in points.items()]
    if said.page and not (points and said.page.startswith("atlas")):
        links.insert(0, show.link(said.page, said.page.partition("#")[0].replace("-", " ")))
    return f"<p>{show.with_code(said.why)}</p><p><b>Fix:</b> {show.with_code(said.fix)} See {' · '.join(links)}.</p>"
