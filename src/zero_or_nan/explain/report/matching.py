"""Which rewrites fit the calls that led to a failure: a pattern is compared with a call, and with those before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...functions.rewrites import function_in, operands_in
from ..births.call import Call, arranged
from ..births.chain import Chain


class Match(NamedTuple):
    """A way in which a pattern fits the calls.

    Attributes:
        names: what its names stand for: tensors of the chain, and numbers.
        replaced: the calls that it replaces, the last one first.
    """

    names: Mapping[str, Any]
    replaced: tuple[Call, ...]


def matches(pattern: ast.expr, call: Call | None, chain: Chain, match: Match) -> Iterator[Match]:
    """The ways in which a pattern fits a call, and the calls before it."""
    if call is None or call.name != function_in(pattern):
        return
    written, names = operands_in(pattern), dict(match.names)
    given, options, unusual = arranged(call)
    for keyword in pattern.keywords if isinstance(pattern, ast.Call) else ():
        names[ast.unparse(keyword.value)] = options.get(str(keyword.arg))
        unusual -= {keyword.arg}
    if isinstance(written[-1], ast.Name) and written[-1].id == "dim":
        parameters = ["p", "dim", "keepdim"] if call.name == "norm" else ["dim", "keepdim"]
        options |= dict(zip(parameters, given[1:], strict=False))
        names |= {"dim": options.get("dim"), "keepdim": options.get("keepdim", False)}
        written, given, unusual = written[:-1], given[:1], unusual - {"dim", "keepdim"}
        if names["dim"] is None or options.get("p") not in (None, 2, "fro"):
            return
    if len(given) == len(written) and not unusual - {"dtype"}:
        for order in [given, given[::-1]] if call.name in ("add", "mul") else [given]:
            pairs = list(zip(written, order, strict=True))
            yield from _matches_of_each(pairs, chain, Match(names, (*match.replaced, call)))


def _matches_of_each(pairs: Sequence[tuple[ast.expr, Any]], chain: Chain, match: Match) -> Iterator[Match]:
    """The ways in which each part of a pattern fits an operand."""
    if not pairs:
        yield match
        return
    (part, thing), *rest = pairs
    if isinstance(part, ast.Name):
        known = match.names.get(part.id, thing)
        if known is thing or not isinstance(thing, Tensor) and not isinstance(known, Tensor) and known == thing:
            yield from _matches_of_each(rest, chain, match._replace(names={**match.names, part.id: thing}))
    elif isinstance(part, ast.Constant):
        if not isinstance(thing, Tensor) and thing == part.value:
            yield from _matches_of_each(rest, chain, match)
    elif isinstance(thing, Tensor):
        for inner in matches(part, chain.of(thing), chain, match):
            yield from _matches_of_each(rest, chain, inner)
