"""Rewrites the user's line so that no number is lost: in a wider dtype, or with a larger constant.

If the result of a formula fits the program's dtype, the whole formula may run in a wider dtype from its first line on.
If a number does not fit float16, only the call that computed it runs in float32, and later calls get float32.

A small eps keeps a divisor, or the argument of a logarithm, away from 0, but float16 rounds an eps of 1e-8 to 0. If the
line does not work in float32 either, because the slope of 1e8 does not fit the gradient, the new eps is a choice: the
smallest power of 10 that works.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain, Run
from ..program.code import Place
from ..program.constants import may_be_number
from ..program.source import (
    can_come_before,
    closed,
    expression_at,
    expression_of_module,
    function_around,
    is_all_of,
    is_compared,
    is_rebound,
    last_for_turns,
    looks_up_dtype,
    reads_gradient,
    to_return,
    with_each,
    with_each_in,
    with_result,
)
from ..program.tensors import are_finite, each_in
from .again import FAR, Program, agree, once_more
from .conversion import Calls, Line, calls_of, with_dtype
from .exact import CLOSE, Lost, Outcome, exactly, exists, failed_at, measured, outcome, texts_of
from .limits import is_steady


class Wide(NamedTuple):
    """New code in a wider dtype, which gives the exact numbers where the call failed.

    Attributes:
        text: the code, below a comment with its result on the user's numbers.
        replaces, until: the number of the line, and that of the last line if the code replaces several.
        is_enough: whether the loss is then finite, as far as is known. If not, the program fails elsewhere, too.
    """

    text: str
    replaces: int
    until: int | None
    is_enough: bool = True


def widened(chains: Sequence[Chain], formula: int, module: str, program: Program, lost: Lost | None) -> Wide | None:
    """A line, or a function from a line on, in a wider dtype; None if this does not give the exact numbers.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        formula: how many chains, counted from the end, may be one formula.
        module: the path of the module that made this call; empty if it is unknown.
        program: all known calls.
        lost: the intermediate number that was lost. The line that made it is tried, too.
    """
    failed = chains[-1].call
    has_half = any(tensor.dtype is torch.float16 for tensor in failed.tensors())
    at = failed_at(outcome(chains[-1].run()))
    ends = range(len(chains) - 1, max(-1, len(chains) - 1 - formula), -1)
    exact_at = functools.cache(lambda end: _exact(chains[end]))
    wide = functools.partial(_in_a_wider_dtype, chains, program, exact_at)
    ways = [functools.partial(wide, end, _first_lines(chains[end])) for end in ends]
    if has_half:
        alone = functools.partial(_in_float32, chains, module, at, program.numbers)
        is_autocasts = any(call.casts is not None for call in chains[-1].calls())  # the operands may be float32
        ways.insert(0 if is_autocasts else len(ways), alone)
    if failed.casts is not None:
        outside = [chain.without_autocast(failed) for chain in chains]
        ways.append(functools.partial(_in_float32, outside, module, at, (), f'"{failed.tensors()[0].device.type}"'))
    made = [] if lost is None or lost.key is None else [chains[-1].made[lost.key][1]]
    ways += [functools.partial(wide, end, [failed, *made]) for end in ends]
    for way in ways:
        with contextlib.suppress(RuntimeError):  # the calls do not take these dtypes
            found = way()
            if found is not None:
                return found
    return None


def _exact(chain: Chain) -> tuple[Run, Outcome, Outcome]:
    """A run of a chain, with its outcome, and that in exact arithmetic."""
    plain = chain.run()
    before = outcome(plain)
    return plain, before, exactly(chain, before).found


def _in_a_wider_dtype(
    chains: Sequence[Chain],
    program: Program,
    exact_at: Callable[[int], tuple[Run, Outcome, Outcome]],
    end: int,
    firsts: Sequence[Call],
) -> Wide | None:
    """The line of one of these calls, in the formula that ends with one of the chains, in a wider dtype.

    What follows takes the dtype from there. If it does not, the line gives the dtype back that it had. If this is no
    line of its own, the names are converted in front of it.
    """
    chain = chains[end]
    plain, before, exact = exact_at(end)
    coming = [value for key, value in plain.values.items() if key not in chain.made and value.is_floating_point()]
    dtypes = {value.dtype for value in coming}
    wider = torch.float64 if dtypes <= {torch.float32, torch.float64} else torch.float32
    if dtypes == {wider} or not exists(before, exact):
        return None
    calls = program.numbers
    for first in firsts:
        is_before = first.place.line != chains[-1].call.place.line
        if is_before and is_compared(first.place):
            continue  # the comparison may come out in another way
        if looks_up_dtype(function_around(first.place)):
            continue
        has_it = next(each for each in reversed(chains) if any(call.is_again(first) for call in each.calls()))
        known = calls if any(call.is_again(first) for _, call in calls) else calls_of(has_it)
        line = Line(first, wider)
        from_here = line._replace(is_from_here=True)
        from_here = from_here._replace(skipped=_without_names(from_here, (*map(calls_of, chains), known)))
        for way, write in (
            (line, _operands_converted),
            (line._replace(is_alone=True), _operands_converted),
            (from_here, _names_converted),
            (line._replace(goes_back="line"), _operands_converted),
            (line._replace(goes_back="function"), _operands_converted),
            (from_here._replace(goes_back="function"), _names_converted),
        ):
            written, until = write(chains, way, known), None
            if written and way.goes_back == "function":
                method = _method_back(chains, way) if _gives_one(way, program) else ""
                written, until = to_return(written, first.place, f".{method}()") if method else ("", None)
            if written:
                value = _value_of(way, chains, end, before, exact)
                taken = [(key, with_dtype(call, wider) or call) for key, call in known]  # x.dtype may be wider, too
                if value is not None and way.converted(taken) is not None and (kept := _kept(way, program)):
                    text = _told(value, str(wider).removeprefix("torch."), written)
                    return Wide(text, first.place.line, until, kept == "right")
    return None


def _gives_one(line: Line, program: Program) -> bool:
    """Whether only one result from a function, which gets its dtype back, is read elsewhere: not also an attribute."""
    read = {id(each) for _, call in program.calls if not line.is_within(call) for each in call.tensors()}
    return len({call.place for key, call in program.calls if line.is_within(call) and key in read}) <= 1


def _method_back(chains: Sequence[Chain], line: Line) -> str:
    """The method that gives results of a line, or of a function, the dtype back that they had; empty if it differs."""
    dtypes = {tensor.dtype for chain in chains for tensor, call in chain.made.values() if line.is_within(call)}
    return METHODS.get(next(iter(dtypes)), "") if len(dtypes) == 1 else ""


def _value_of(line: Line, chains: Sequence[Chain], end: int, before: Outcome, exact: Outcome) -> float | None:
    """What a formula gives with another line, if it is exact, and if what follows takes the dtype."""
    near = 1e-4 if line.dtype is torch.float64 else _NEAR
    if line.dtype is torch.float64 and not is_steady(chains[end]):
        return None
    with contextlib.suppress(RuntimeError):
        found, *_ = [outcome(line.converts(chain).run()) for chain in reversed(chains[: end + 1])]
        for was, now, right in zip(before.parts, found.parts, exact.parts, strict=True):
            if not are_finite(now.to(was.dtype)) or not _is_near(now.double(), right, near):
                return None
        return float(found.value[failed_at(before)])
    return None


def _kept(line: Line, program: Program) -> Literal["", "right", "not finite"]:
    """What the loss is with a line; empty if it is wrong, because what follows loses a number again.

    If the exact loss is unknown, so is that with the line, and counts as right.
    """
    right = program.right
    if right is None:
        return "right"
    if line.dtype is torch.float64 and not program.is_steady:
        return ""
    now = once_more(program, converted=line.changes(program.calls))
    near = _NEAR if line.dtype is torch.float64 else FAR
    if now is not None and not now.outcome.is_finite:
        return "not finite"
    return "right" if agree(now, right, near) else ""  # a call may refuse the dtype


def _first_lines(chain: Chain) -> list[Call]:
    """The first call that computes, of each function in the file of the last one, whose own function comes first."""
    found: dict[CodeType, Call] = {}
    for call in chain.calls():
        if call.plan.numerics.moves or not any(each.is_floating_point() for each in call.tensors()):
            continue
        known = found.get(call.place.code)
        if call.place.filename == chain.call.place.filename and (known is None or call.place.line <= known.place.line):
            found[call.place.code] = call
    return [*found.values()]


def _converted(line: Line, calls: Calls) -> tuple[list[Call], list[tuple[str, Call]] | None]:
    """The calls of a line, and the expressions that it converts, each with the call that reads it.

    It has None in place of these if a call does not take that, or if one of them can't be read.
    """
    wide, inside = line.converted(calls), [call for _, call in calls if line.has(call)]
    if wide is None:
        return inside, None
    operands = sum(id(tensor) in wide for call in inside for tensor in call.tensors())
    read = [(_apart(thing, text), call) for call in inside for thing, text in texts_of(call) if id(thing) in wide]
    return inside, read if len(read) == operands else None


def _apart(thing: Any, text: str) -> str:
    """The user's expression for a tensor; in parentheses if it is an item of a list or a dictionary, and no view."""
    return f"({text})" if is_item(thing, text) else text


def is_item(thing: Any, text: str) -> bool:
    """Whether an expression is an item of a list or a dictionary: an index of a tensor gives a view, or is a call."""
    return text.endswith("]") and isinstance(thing, Tensor) and thing._base is None


def _without_names(line: Line, every: Iterable[Calls]) -> frozenset[tuple[Place, str]]:
    """The calls of a line that read an operand which is no view of a name: `1 - torch.eye(3)`."""
    found = (call for calls in every for text, call in _converted(line, calls)[1] or () if not VIEW.fullmatch(text))
    return frozenset((call.place, call.name) for call in found)


def _operands_converted(chains: Sequence[Chain], line: Line, calls: Calls) -> str:
    """The line with its operands in another dtype; empty if it can't be written, or if a call does not take it."""
    inside, read = _converted(line, calls)
    expressions = [expression_at(*at) for at in {(call.place, call.name) for call in inside}]
    if not read or any(may_be_number(text, call.place) for text, call in read):
        return ""
    code = with_each_in(expressions, {text: f"{closed(text)}.{METHODS[line.dtype]}()" for text, _ in read})
    if code is None or line.goes_back != "line":
        return code or ""
    method = _method_back(chains, line)
    return with_result(code, f".{method}()") if method and is_all_of(expressions) else ""


def _names_converted(chains: Sequence[Chain], line: Line, calls: Calls) -> str:
    """The line of a call, behind one that gives all tensors which the function reads from there on another dtype."""
    first = line.first
    code, names = first.place.code, set[str]()
    begin = next(at for at, (_, call) in enumerate(calls) if call.is_beside(first))
    for known in (*map(calls_of, chains), calls[begin:]):
        _, read = _converted(line, known)
        if read is None or not all(VIEW.fullmatch(text) for text, _ in read):
            return ""
        named = [(re.split(r"\W", text, maxsplit=1)[0], call) for text, call in read]
        if any(is_rebound(name, first.place, call.place) for name, call in named if call is not first):
            return ""
        names.update(name for name, _ in named)
    expression = expression_at(first.place, first.name)
    is_local = code.co_name == "<module>" or names <= {*code.co_varnames, *code.co_cellvars}
    if any(reads_gradient(name, first.place) for name in names) or last_for_turns(names, first.place):
        return ""  # the converted tensor is no leaf, and gets none
    if not names or not is_local or expression is None or not expression.is_whole or not can_come_before(first.place):
        return ""
    every = sorted(names)
    head = f"{', '.join(every)} = {', '.join(f'{name}.{METHODS[line.dtype]}()' for name in every)}"
    return f"{head}\n{expression.line}"


VIEW = re.compile(
    r"\w+(\.m?[TH]\b|\.(t|transpose|permute|flatten|squeeze|unsqueeze|view|reshape|expand)\([-\w, ]*\)|\[[^][]*\])*"
)
"""Matches a name, or a view of it with the same dtype."""

METHODS = {torch.float64: "double", torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}


def _told(value: float, dtype: str, line: str) -> str:
    return f"# tried on your numbers, in {dtype}: value {number(value)}, and finite gradients\n{line}"


def _in_float32(
    chains: Sequence[Chain], module: str, at: tuple[int, ...], calls: Calls, autocast: str = ""
) -> Wide | None:
    """The line of a call that left float16, with this call in float32, and without the autocast of a device, if any."""
    failed = chains[-1].call
    if Line(failed, torch.float32, is_alone=True).converted(calls) is None:
        return None
    for chain in chains:
        again = next((call for call in chain.calls() if call.is_again(failed)), None)
        if again is None or any(call.is_cast for call in chain.calls()):
            return None
        given = {id(tensor): tensor.float() for tensor in again.tensors() if tensor.dtype is torch.float16}
        run = chain.run(given=given)
        found = outcome(run)
        arriving = [each.half() for (key, _), each in found.gradients.items() if key in given]
        if chain is chains[0] and not are_finite(arriving):
            return None
        pairs = zip(found.parts, outcome(chain.run(torch.float64, given)).parts, strict=True)
        near = CLOSE[torch.float16]  # what is computed from here on may be in float16
        if not all(_is_near(now.double(), right, near) for now, right in pairs):
            return None
    line = _line_in_float32(failed, module)
    if line is None:
        return None
    if autocast:
        if with_each(line, {}) is None or not can_come_before(failed.place):
            return None  # it is a part of a statement
        line = f"with torch.autocast({autocast}, enabled=False):\n    {line}"
    return Wide(_told(run.result[at].item(), "float32", line), failed.place.line, None)


_NEAR = 2e-2
"""The largest error, relative to the largest number, if some of the calls are in float16."""


def _is_near(now: Tensor, right: Tensor, near: float = _NEAR) -> bool:
    largest = float(right.abs().max())
    return are_finite(now) and torch.allclose(now, right, rtol=near, atol=near * largest)


def _line_in_float32(call: Call, path: str) -> str | None:
    """The line of a call with this call in float32."""
    half = [tensor for tensor in call.tensors() if tensor.dtype is torch.float16]
    expression = expression_at(call.place, call.name)
    texts = [text for thing, text in texts_of(call) if any(thing is tensor for tensor in half)]
    if expression is None:  # perhaps it calls a module, whose other tensors are its own
        expression = expression_of_module(call.place, path)
        if expression is None or not isinstance(expression.node, ast.Call) or len(expression.node.args) != 1:
            return None
        texts = [*map(ast.unparse, expression.node.args)] if call.args[0].dtype is torch.float16 else []
        if len(half) > len(texts):
            texts.append(ast.unparse(expression.node.func))
    elif len(texts) < len(half):
        return None
    return None if expression.has_scope else with_each_in([expression], {t: f"{closed(t)}.float()" for t in texts})


# A larger number beside one that was lost.

_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-6}
"""The floor that is added to a positive number that underflowed. Smaller dtypes get 1e-3."""


def floor_under(lost: Lost, chain: Chain) -> str:
    """The line that lost a positive number, plus a small floor; empty if this does not help, or can't be written."""
    if lost.key is None or lost.fits:
        return ""
    result, call = chain.made[lost.key]
    expression = expression_at(call.place, call.name)
    if expression is None or not expression.is_whole or bool((result < 0).any() or result.isinf().any()):
        return ""
    floor = _FLOORS.get(result.dtype, 1e-3)
    if not outcome(chain.run(given={lost.key: result + floor})).is_finite:
        return ""
    return expression.replaced_by(f"{ast.unparse(expression.node)} + {number(floor)}")


def constant_lost(lost: Lost | None, chain: Chain) -> float | None:
    """The constant that the dtype rounded to 0, if it is an operand of the call that lost a number."""
    if lost is None or lost.key is None:
        return None
    result, call = chain.made[lost.key]
    numbers = each_in((call.args, call.kwargs), float)
    return next((each for each in numbers if each > 0 and float(torch.tensor(each, dtype=result.dtype)) == 0), None)


def larger_constant(constant: float, lost: Lost, chain: Chain) -> tuple[str, int, int | None] | None:
    """The line with the smallest power of 10 that works, with its result, and the line's number; None if none works."""
    assert lost.key is not None
    result, call = chain.made[lost.key]
    before = outcome(chain.run())
    known, close = torch.isfinite(before.value), CLOSE[before.value.dtype]
    for value in (10.0**exponent for exponent in range(-7, -1)):

        def changed(each: Call, value: float = value) -> Call:
            args = each.args, dict(each.kwargs)
            args, kwargs = tree_map_only(float, lambda thing: value if thing == constant else thing, args)
            return each._replace(args=args, kwargs=kwargs) if each is call else each

        run = chain.with_calls(changed).run()
        now = outcome(run)
        if now.is_finite and torch.allclose(now.value[known], before.value[known], rtol=close, atol=close):
            break
    else:
        return None
    expression = expression_at(call.place, call.name)
    text = next((text for thing, text in texts_of(call) if isinstance(thing, float) and thing == constant), None)
    if expression is None or text is None or call.place.filename != chain.call.place.filename:
        return None
    begin, end = expression.start, expression.end
    code = with_each(expression.line[begin:end], {text: number(value)})
    found, gradient = measured(before, run)
    dtype = str(result.dtype).removeprefix("torch.")
    why = f"# a choice: {number(value)}, because {dtype} rounds {number(constant)} to 0"
    told = f"{why}. Tried on your numbers: value {number(found)}, gradient {number(gradient)}"
    return f"{told}\n{expression.line[:begin]}{code}{expression.line[end:]}", call.place.line, None
