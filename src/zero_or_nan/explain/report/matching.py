"""Finds the calls that a rewrite matches, and writes the user's line with the rewrite in it."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...functions.numerics import numerics_of
from ...functions.rewrites import Rewrite, function_in, operands_in
from ..births.call import Call, arranged, in_order
from ..births.chain import Chain
from ..program.constants import is_fixed
from ..program.source import (
    Expression,
    can_come_before,
    can_run_twice,
    expression_at,
    free_name,
    has_call,
    has_functional,
    is_rebound,
)
from ..program.tensors import tensors_in
from .exact import texts_of


class Match(NamedTuple):
    """The operands for the names of a pattern, and the calls that it replaces, the last call first."""

    names: Mapping[str, Any]
    replaced: tuple[Call, ...]


def matches(pattern: ast.expr, call: Call | None, chain: Chain, match: Match) -> Iterator[Match]:
    """The ways in which a pattern matches a call and the calls before it."""
    if call is None or call.name != function_in(pattern):
        return
    written, names = operands_in(pattern), dict(match.names)
    given, options, unusual = arranged(call)
    for keyword in pattern.keywords if isinstance(pattern, ast.Call) else ():
        names[ast.unparse(keyword.value)] = options.get(str(keyword.arg))
        unusual -= {keyword.arg}
    if isinstance(written[-1], ast.Name) and written[-1].id == "dim":
        parameters = ["p", "dim", "keepdim"] if numerics_of(call.name).has_order else ["dim", "keepdim"]
        options |= dict(zip(parameters, given[1:], strict=False))
        options.setdefault("p", options.get("ord"))
        names |= {"dim": options.get("dim"), "keepdim": options.get("keepdim", False)}
        written, given, unusual = written[:-1], given[:1], unusual - {"ord", "p", "dim", "keepdim"}
        if names["dim"] is None or options.get("p") not in (None, 2, "fro"):
            return
    if len(given) == len(written) and not unusual - {"dtype"}:
        for order in [given, given[::-1]] if call.name in ("add", "mul") else [given]:
            pairs = list(zip(written, order, strict=True))
            if all(_is_fixed(thing, call) for part, thing in pairs if isinstance(part, ast.Constant)):
                yield from _matches_of_each(pairs, chain, Match(names, (*match.replaced, call)))


def _is_fixed(thing: Any, call: Call) -> bool:
    """Whether an operand that is no tensor is the same number in each run of the line, as far as the source shows."""
    texts = [text for each, text in texts_of(call) if each is thing and not isinstance(each, Tensor)]
    return not texts or any(is_fixed(text, call.place) for text in texts)


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


def line_of(rewrite: Rewrite, match: Match) -> tuple[str, int | None]:
    """The user's line with the rewrite in it, and its number. If it can't be read, the rewrite with a remark."""
    call, names = match.replaced[0], match.names
    tensors = [name for name, thing in names.items() if any(True for _ in tensors_in(thing))]
    expression = expression_at(call.place, call.name)
    texts = {} if expression is None or not expression.is_whole else _texts(tensors, match, expression)
    before = []
    for name in [name for name in tensors if name in texts and not texts[name].isidentifier()]:
        if expression is None or len(re.findall(rf"\b{name}\b", rewrite.code)) == 1:
            continue
        if not (expression.has_scope or expression.is_conditional) and can_come_before(call.place):
            free = free_name(name, call.place)
            before.append(f"{free} = {texts[name]}")  # it is written once
            texts[name] = free
        elif "(" in texts[name]:
            del texts[name]  # a call would run several times
    unknown = [name for name in tensors if name not in texts]
    written = texts | {name: free_name(name, call.place) for name in unknown}
    written |= {name: text or repr(names[name]) for name, text in numbers_of(match).items()}
    source = rewrite.code
    if not has_functional(call.place):
        source = re.sub(r"\bF\.", "torch.nn.functional.", source)
    code = _short(ast.unparse(_Named(written).visit(ast.parse(source, mode="eval").body)))
    owner = None if expression is None else expression.overwrites()
    is_lost = owner is not None and not can_run_twice(owner)
    is_lost |= expression is not None and any(isinstance(each, ast.NamedExpr) for each in ast.walk(expression.node))
    if owner is not None:
        code = f"{owner}.copy_({code})"
    if expression is not None and expression.is_whole and not unknown and not is_lost:
        return "\n".join([*before, expression.replaced_by(code)]), call.place.line
    if not has_call(call.place, call.name):
        names_of_operands = " and ".join(written[name] for name in unknown)
        head = [f"# in place of {call.name}, in code that line {call.place.line} calls: {names_of_operands} go in"]
    else:
        head = [f"# in place of {call.name} in line {call.place.line}"]
        head += [
            f"# {written[name]} is an operand of {of.name} in line {of.place.line}"
            for name, (of, _) in _uses(unknown, match)
        ]
    return "\n".join([*head, *before, code]), None


def numbers_of(match: Match) -> dict[str, str | None]:
    """The user's expression for each name that stands for no tensor; None if the new line has a constant instead."""
    expression = expression_at(match.replaced[0].place, match.replaced[0].name)
    names = [name for name, thing in match.names.items() if not any(True for _ in tensors_in(thing))]
    known = {} if expression is None else _texts(names, match, expression)
    return {name: known.get(name) for name in names}


def _texts(names: Sequence[str], match: Match, last: Expression) -> dict[str, str]:
    """The user's expression for each name, if it means the same tensor in the expression of the last call."""
    end, texts = match.replaced[0].place, {}
    for name, (call, at) in _uses(names, match):
        expression, operands = expression_at(call.place, call.name), texts_of(call)
        is_known = at < len(operands) and operands[at][0] is match.names[name]
        if expression is None or call.place.code is not end.code or call.is_old or not is_known:
            continue
        text = operands[at][1]
        is_inside = call.place.line == end.line and last.start <= expression.start <= expression.end <= last.end
        is_again = call.place.line != end.line and not can_run_twice(text)
        has_scope = expression.has_scope or last.has_scope
        if is_inside or not (is_again or has_scope or is_rebound(text, call.place, end)):
            texts[name] = text
    return texts


def _uses(names: Sequence[str], match: Match) -> Iterator[tuple[str, tuple[Call, int]]]:
    """For each name, the first call that it is an operand of, and its position there.

    A number that is an operand twice is left out: a dimension and an index may both be 0.
    """
    for name in names:
        thing = match.names[name]
        found = [(call, at) for call in match.replaced for at, each in enumerate(in_order(call)) if each is thing]
        if found and (len(found) == 1 or isinstance(thing, Tensor)):
            yield name, found[0]


def _short(code: str) -> str:
    """Code with double quotes, and without zeros in exponents, if it means the same then."""
    short = code.replace("e-0", "e-").replace("'", '"')
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse(short)) == ast.dump(ast.parse(code)):
            return short
    return code


class _Named(ast.NodeTransformer):
    """Puts the user's expressions in the place of names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def visit_keyword(self, node: ast.keyword) -> ast.keyword | None:
        """A `keepdim` of False is left out."""
        node = ast.keyword(node.arg, self.visit(node.value))
        return None if ast.unparse(node) == "keepdim=False" else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self.texts.get(node.id)
        return node if text is None else ast.parse(text, mode="eval").body
