"""Tries rewrites on the numbers of the call that failed. What gives a wrong number there, or none, is not printed.

The chain of calls runs in float64, which has room for what was too large, too small or rounded in the program. Where
that gives a number and a gradient, a rewrite must give the same ones. Where it gives none, the rewrite must say what it
chooses. On ordinary numbers beside the reader's, the rewrite must agree with the program's own computation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions.rewrites import REWRITES, Rewrite, function_in, operands_in
from ..births.arithmetic import number
from ..births.call import Call
from ..births.history import Chain, Run
from ..program.expression import expression_at, is_rebound
from ..program.tensors import extra, not_finite, without_side_effects
from .exact import Outcome, floor_under, lost_on_the_way, outcome

Names = dict[str, Any]
"""What the names of a pattern stand for: tensors of the chain, and numbers."""

_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far, relative to it, a result may be from the exact one."""

MOST_ELEMENTS = 10_000_000
"""The size of the operands from which on nothing is tried."""

_ORDINARY = 2
"""How often ordinary numbers are drawn."""


class Tried(NamedTuple):
    """A rewrite that gave the right numbers.

    Attributes:
        line: the code to write.
        choice: what it chooses, or empty.
        value, gradient: the first element of its result that was not finite before, and the gradient there.
    """

    line: str
    choice: str
    value: float
    gradient: float


class Advice(NamedTuple):
    """What running a call again has shown.

    Attributes:
        remedy: the code to write, with what was measured as a comment; empty if nothing that was tried is right.
        exact: the exact value, and the number on the way that was lost; empty if exact arithmetic has no value either.
    """

    remedy: str = ""
    exact: str = ""


NOTHING_TRIED = Advice()


def advice_on(chains: Sequence[Chain]) -> Advice:
    """Try rewrites of the calls with which a number was born, and run the call in exact arithmetic.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
    """
    if not chains or sum(tensor.numel() for tensor in chains[0].tensors()) > MOST_ELEMENTS:
        return NOTHING_TRIED
    try:
        with extra():
            checked = [chain.checked() for chain in chains]
            found = next(filter(None, (tried(chain, checked[-1].call) for chain in checked)), None)
            lost = lost_on_the_way(checked[-1])
            if found is None and lost is not None:
                return Advice(floor_under(lost, checked[-1]), str(lost))
            return Advice(_told(found), "" if lost is None else str(lost))
    except Exception:  # code of the user's may be in the chain, and may refuse to run again
        return NOTHING_TRIED


def _told(found: Tried | None) -> str:
    if found is None:
        return ""
    measured = f"value {number(found.value)}, gradient {number(found.gradient)}"
    if found.choice:
        return f"# a choice: {found.choice}. Tried on your numbers: {measured}\n{found.line}"
    return f"# tried on your numbers: {measured}, as in float64\n{found.line}"


def tried(chain: Chain, failed: Call) -> Tried | None:
    """The first rewrite of the last call of a chain that gives the right numbers, and that replaces the failed call."""
    for each in REWRITES.get(chain.call.name, ()):
        names: Names = {}
        replaced: list[Call] = []
        if _fits(each.pattern, chain.call, chain, names, replaced) and any(_is_same(call, failed) for call in replaced):
            found = _try(each, names, chain)
            if found is not None:
                return found
    return None


def _is_same(call: Call, other: Call) -> bool:
    return call.place == other.place and call.name == other.name


# Which rewrites fit the calls.


def _fits(pattern: ast.expr, call: Call | None, chain: Chain, names: Names, replaced: list[Call]) -> bool:
    """Whether a call is what a pattern says. Notes what the names stand for, and the calls that are replaced."""
    if call is None or call.name != function_in(pattern):
        return False
    replaced.append(call)
    written = operands_in(pattern)
    given = _in_order(call)
    options = {"dim": call.kwargs.get("dim"), "keepdim": call.kwargs.get("keepdim", False)}
    if written and isinstance(written[-1], ast.Name) and written[-1].id == "dim":
        written = written[:-1]
        dim = given[1] if len(given) > 1 else options["dim"]
        names.update(dim=dim, keepdim=given[2] if len(given) > 2 else options["keepdim"])
        given = given[:1]
        if dim is None:
            return False
    if len(given) != len(written) or set(call.kwargs) - {"dim", "keepdim", "dtype", "_stacklevel"}:
        return False
    return all(_is(part, thing, chain, names, replaced) for part, thing in zip(written, given, strict=True))


def _is(pattern: ast.expr, thing: Any, chain: Chain, names: Names, replaced: list[Call]) -> bool:
    if isinstance(pattern, ast.Name):
        known = names.setdefault(pattern.id, thing)
        return known is thing or isinstance(known, (int, float)) and known == thing
    if isinstance(pattern, ast.Constant):
        return not isinstance(thing, Tensor) and bool(thing == pattern.value)
    return isinstance(thing, Tensor) and _fits(pattern, chain.of(thing), chain, names, replaced)


# Whether a rewrite gives the right numbers.


def _try(rewrite: Rewrite, names: Names, chain: Chain) -> Tried | None:
    given = {id(thing): thing for thing in names.values() if isinstance(thing, Tensor)}
    try:
        before = _by_program(chain, given, None)
        exact = _by_program(chain, given, torch.float64)
        after = _by_rewrite(rewrite, names, given, None)
        if rewrite.choice and bool((torch.isfinite(_exact(chain)) & not_finite(exact.value)).any()):
            return None  # there is a number, but one on the way was lost
        if after.value.shape != before.value.shape or not _agrees(after, before, exact, bool(rewrite.choice)):
            return None
        for seed in range(_ORDINARY):
            ordinary = _ordinary(given, seed)
            program = _by_program(chain, ordinary, torch.float64)
            if not _is_near(_by_rewrite(rewrite, names, ordinary, torch.float64), program):
                return None
    except (RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the arguments
        return None
    of = next((key for key, found in before.gradients.items() if bool(not_finite(found).any())), None)
    value = after.value[_first(not_finite(before.value))].item()
    key = next(iter(before.gradients)) if of is None else of
    gradient = after.gradients[key][_first(not_finite(before.gradients[key]))].item()
    return Tried(_line(rewrite, names, chain), rewrite.choice, value, gradient)


def _first(elements: Tensor) -> tuple[int, ...]:
    """The index of the first element that is True, or else of the first element."""
    found = elements.nonzero()
    return tuple(found[0].tolist()) if len(found) else (0,) * elements.dim()


def _exact(chain: Chain) -> Tensor:
    result: Tensor = chain.run(torch.float64).result
    return result.detach()


def _by_program(chain: Chain, given: Mapping[int, Tensor], dtype: torch.dtype | None) -> Outcome:
    run = chain.run(dtype, given)
    return outcome(run.result, {key: leaf for key, leaf in run.leaves.items() if key in given})


def _by_rewrite(rewrite: Rewrite, names: Names, given: Mapping[int, Tensor], dtype: torch.dtype | None) -> Outcome:
    run = Run({}, {}, None)
    for key, tensor in given.items():
        run.take(key, tensor, dtype)
    with without_side_effects(), torch.enable_grad():
        values = {name: run.values.get(id(thing), thing) for name, thing in names.items()}
        run.result = eval(rewrite.code, {"torch": torch, "F": F}, values)
    return outcome(run.result, run.leaves)


def _ordinary(given: Mapping[int, Tensor], seed: int) -> dict[int, Tensor]:
    """Tensors of the same shapes, with numbers between 0.05 and 1.85."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(tensor: Tensor) -> Tensor:
        numbers = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 1.8 + 0.05
        return numbers.to(tensor.device) if tensor.is_floating_point() else tensor

    return {key: drawn(tensor) for key, tensor in given.items()}


def _is_near(after: Outcome, program: Outcome) -> bool:
    """Whether a rewrite gives what the program gives, where that gives numbers. Both are in float64."""
    pairs = [(after.value, program.value), *((after.gradients[key], found) for key, found in program.gradients.items())]
    for now, was in pairs:
        known = torch.isfinite(was)
        if not torch.allclose(now[known], was[known], rtol=1e-7, atol=1e-9):
            return False
    return True


def _agrees(after: Outcome, before: Outcome, exact: Outcome, chooses: bool) -> bool:
    """Whether what a rewrite gives is finite, and is what exact arithmetic gives, if that gives a number."""
    pairs = [(after.value, before.value, exact.value)]
    pairs += [(after.gradients[name], before.gradients[name], exact.gradients[name]) for name in exact.gradients]
    for now, was, right in pairs:
        if bool(not_finite(now).any()):
            return False
        known = torch.isfinite(right)
        # Exact arithmetic has no number there: the program had none either, and the rewrite chooses one.
        if not chooses and not bool(known.all()):
            return False
        fits = known & (right.abs() < torch.finfo(was.dtype).max)
        rtol, atol = _CLOSE.get(was.dtype, 1e-4), _least(was, right)
        if not torch.allclose(now.double()[fits], right[fits], rtol=rtol, atol=atol):
            return False
    return True


def _least(was: Tensor, right: Tensor) -> float:
    """The absolute difference that rounding the largest number explains."""
    finite = right[torch.isfinite(right)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.finfo(was.dtype).eps * min(largest, 1.0)


# The code, in the user's words.


def _line(rewrite: Rewrite, names: Names, chain: Chain) -> str:
    """The user's line with the rewrite in it; or the rewrite with a remark, if the line can't be read."""
    texts: dict[str, str] = {}
    remarks: dict[str, str] = {}
    _name(rewrite.pattern, chain.call, chain, texts, remarks)
    before = []
    for name, text in texts.items():
        if (
            isinstance(names[name], Tensor)
            and not text.isidentifier()
            and len(re.findall(rf"\b{name}\b", rewrite.code)) > 1
        ):  # write it once
            before.append(f"{name} = {text}")
            texts[name] = name
    written = {name: texts.get(name, name) for name in names if isinstance(names[name], Tensor)}
    written |= {name: repr(thing) for name, thing in names.items() if not isinstance(thing, Tensor)}
    code = ast.unparse(_Named(written).visit(ast.parse(rewrite.code, mode="eval").body)).replace("e-0", "e-")
    expression = expression_at(chain.call.place)
    unknown = [remarks[name] for name in written if name in remarks and name not in texts]
    if unknown or expression is None or not expression.statement or not expression.calls(chain.call.name):
        return "\n".join([*unknown, code])
    return "\n".join([*before, expression.replaced_by(code)])


def _name(pattern: ast.expr, call: Call, chain: Chain, texts: dict[str, str], remarks: dict[str, str]) -> None:
    """Note the user's expression for each name of a pattern, and a remark that says what it is elsewhere."""
    expression = expression_at(call.place)
    is_here = call.place.code is chain.call.place.code
    operands = expression.operands() if expression is not None and expression.calls(call.name) else []
    for at, (part, thing) in enumerate(zip(operands_in(pattern), _in_order(call), strict=False)):
        if isinstance(part, ast.Name):
            remarks.setdefault(part.id, f"# {part.id} is the operand of {call.name} in line {call.place.line}")
            if at < len(operands) and is_here and not is_rebound(operands[at], call.place, chain.call.place):
                texts.setdefault(part.id, operands[at])
        elif isinstance(thing, Tensor) and (earlier := chain.of(thing)) is not None:
            _name(part, earlier, chain, texts, remarks)


def _in_order(call: Call) -> list[Any]:
    """The arguments of a call in the order in which an operator has its operands: `1 - x` is a call with x first."""
    name = getattr(call.func, "__name__", "")
    is_reversed = name == "rsub" or name.startswith("__r") and name not in ("__repr__", "__round__")
    return [*call.args[1::-1], *call.args[2:]] if is_reversed else list(call.args)


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
