"""Runs one of the user's functions in float32 or float64, by a decorator above it, or lines outside of functions.

A number may be lost in one line and be needed in another, so that no line alone repairs the formula. The calls that ran
during the function run again in the wider dtype, and the others as before. The innermost function that is enough gets
the decorator.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import NamedTuple

import torch
from torch import Tensor

from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.code import Caller, Place
from ..program.pasted import Pasted
from ..program.source import parsed_file
from ..program.tensors import are_finite
from .again import Again, Change, Program, agree, once_more
from .exact import Outcome, exactly, exists, failed_at, outcome
from .limits import is_steady

_NEAR = 1e-3
"""The largest relative error of the loss and of each gradient."""

_ROUNDING = 1e-5
"""The error of a gradient that is 0 by cancellation, relative to the largest number."""

_AFTER = 10
"""How many calls, from the failed one on, may be part of the same formula."""

_RUNS_IN_BACKWARD = re.compile(r"\bcheckpoint(_sequential)?\(|import checkpoint\b|\.register_(full_backward_)?hook\(")
"""Matches a file whose code runs in a backward pass, after the function."""

_NEEDS_ONE_DTYPE = re.compile(r" @ |\b(mm|bmm|matmul|linear|einsum)\(")
"""Matches code that needs operands of one dtype, such as the backward of a user's `autograd.Function`."""

_KEEPS_STATE = re.compile(r"\boptim\.|\.step\(|\bload(_state_dict)?\(|Scaler\(")
"""Matches code that makes or changes what is used elsewhere, such as the state of an optimizer."""

_DECORATED = """\
# {dtype} inside of this function, whose results get their dtype back.
# Tried on your numbers: {told}
from zero_or_nan import in_{dtype}

{code}"""

_BLOCK = """\
# {dtype} inside of the block, and what it gives stays in {dtype}.
# Tried on your numbers: {told}
from zero_or_nan import in_{dtype}

with in_{dtype}():
{code}"""


class Wider(NamedTuple):
    """Lines that compute in a wider dtype.

    Attributes:
        text: the lines, below a comment with what they give on the user's numbers.
        replaces: the number of the first line that they replace.
        until: that of the last line, if they replace several.
    """

    text: str
    replaces: int
    until: int | None


def in_a_wider_dtype(chains: Sequence[Chain], program: Program) -> Wider | None:
    """A function, or lines outside of functions, in a wider dtype; None if nothing gives the exact numbers.

    Float32 is tried first where the failed call computes in 16 bits. If the exact loss is not known, the first result
    decides that its dtype has room for.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        program: all known calls.
    """
    failed = chains[-1].call
    if program.is_rounded_before or program.right is not None and not program.is_steady:
        return None
    for code in reversed(around(failed, program)):
        lines = _lines(code, failed.place, program)
        for dtype in _wider(failed) if lines is not None else ():
            if lines is not None and (told := _told(dtype, code, chains, program)):
                text = "".join(linecache.getline(code.co_filename, at) for at in range(lines[0], lines[1] + 1))
                name, text = str(dtype).removeprefix("torch."), textwrap.dedent(text).rstrip()
                is_block = code.co_name == "<module>"
                wider = textwrap.indent(text, "    ") if is_block else decorated(text, name)
                form = _BLOCK if is_block else _DECORATED
                first, last = lines
                found = Wider(form.format(dtype=name, told=told, code=wider), first, last if last > first else None)
                if fits_in(failed.place, found.text, first, last):
                    return found
    return None


def _told(dtype: torch.dtype, code: CodeType, chains: Sequence[Chain], program: Program) -> str:
    """What a function in a wider dtype gives, as half a sentence; empty if this is wrong."""
    if program.right is not None:
        inside = inside_of(code, program)
        found = None if inside is None else in_dtype(dtype, program, inside)
        if found is None or program.again is None or not agree(found, program.right, _NEAR, _ROUNDING):
            return ""
        stays_wide = code.co_name == "<module>"
        fits = stays_wide or are_finite(found.outcome.value.to(program.again.outcome.value.dtype))
        return program.right.told if fits else ""
    if program.exact is not None:
        return ""  # it has no exact loss
    for chain in reversed(chains[-_AFTER:]):
        before = outcome(chain.run())
        exact = exactly(chain, before).found
        if exists(before, exact):
            is_inside = all(code in around(call, program) for call in chain.calls())
            is_right = is_inside and _agree(outcome(chain.run(dtype)), exact, before) and is_steady(chain)
            return f"value {number(exact.value[failed_at(before)].item())}, and finite gradients" if is_right else ""
    return ""


def _agree(now: Outcome, exact: Outcome, before: Outcome) -> bool:
    """Whether a result and its gradients are near the exact ones, and fit the dtypes that they had before."""
    parts = zip(now.parts, exact.parts, before.parts, strict=True)
    return all(
        are_finite(one.to(was.dtype)) and torch.allclose(one.double(), it, _NEAR, _NEAR * float(it.abs().max()))
        for one, it, was in parts
    )


def _wider(failed: Call) -> list[torch.dtype]:
    """The dtypes in which a call may run again, the narrowest first."""
    sizes = {each.dtype.itemsize for each in failed.tensors() if each.is_floating_point()}
    return [torch.float32, torch.float64] if sizes <= {2} else [torch.float64]


def around(call: Call, program: Program) -> list[CodeType]:
    """The user's functions during which each call from a function ran, the outermost first."""
    always, _ = program.around(call.place.code)
    return [*always, call.place.code]


def inside_of(code: CodeType, program: Program) -> set[int] | None:
    """The positions of the calls during a function; None if some calls of another function are, and others are not."""
    inside = set[int]()
    for at, (_, call) in enumerate(program.calls):
        always, at_times = program.around(call.place.code)
        if call.place.code is code or code in always:
            inside.add(at)
        elif code in at_times:
            return None
    return inside


def in_dtype(
    dtype: torch.dtype,
    program: Program,
    inside: Collection[int],
    converted: Callable[[int, Tensor], Change | None] = lambda at, tensor: None,
) -> Again | None:
    """The loss and its gradients if some calls run in a dtype; None if another number then decides what code runs.

    Args:
        dtype, inside: the dtype, and the positions of the calls.
        program: all known calls.
        converted: as in `once_more`.
    """
    plain, found = program.again, once_more(program, converted=converted, dtype=dtype, only=inside)
    if plain is None or found is None:
        return None
    read = {id(each) for _, call in program.calls for each in call.tensors()}
    decided = [at for at in found.decisions.keys() & plain.decisions.keys() if program.calls[at][0] not in read]
    return found if all(torch.equal(found.decisions[at], plain.decisions[at]) for at in decided) else None


def _lines(code: CodeType, place: Place, program: Program) -> tuple[int, int] | None:
    """The first and the last line that change: the head of a function, or a block of a file. None if neither can."""
    if code.co_name == "<module>":
        tree = parsed_file(place) if code.co_filename == place.filename else None
        return None if tree is None else _block(code, tree, program)
    node = function_of(code, place)
    return None if node is None else (first_line(node), node.lineno)


def fits_in(place: Place, text: str, first: int, last: int) -> bool:
    """Whether the file of a call can be compiled with other code in place of some lines."""
    with contextlib.suppress(SyntaxError):
        Pasted(place.filename, first, text, last).compiled()
        return True
    return False


def function_of(code: CodeType, place: Place) -> ast.FunctionDef | None:
    """The definition of a function in the file of a call; None if it is no function that may get the decorator."""
    tree = parsed_file(place) if code.co_filename == place.filename else None
    for node in ast.walk(tree or ast.Pass()):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            has_it = any("in_float" in ast.unparse(each) for each in node.decorator_list)
            is_run_later = code.co_flags & inspect.CO_GENERATOR or _runs_in_backward(tree or node)
            is_own = code.co_varnames[:1] == ("ctx",) or _KEEPS_STATE.search(ast.unparse(node))
            if first_line(node) == code.co_firstlineno and not has_it and not is_run_later and not is_own:
                return node
    return None


def _runs_in_backward(tree: ast.AST) -> bool:
    own = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "backward"]
    is_mixed = any(_NEEDS_ONE_DTYPE.search(ast.unparse(each)) for each in own)
    return is_mixed or _RUNS_IN_BACKWARD.search(ast.unparse(tree)) is not None


def first_line(node: ast.FunctionDef) -> int:
    """The number of the first line of a function, or of its first decorator."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def decorated(text: str, name: str) -> str:
    """The lines of a function, from its first decorator on, with one more decorator."""
    return re.sub("^(?=def )", f"@in_{name}()\n", text, count=1, flags=re.MULTILINE)


def _block(code: CodeType, tree: ast.AST, program: Program) -> tuple[int, int] | None:
    """The first and the last line of the statements of a file from which calls were made up to the loss.

    None if these are in no common block, or if an indentation would change a string in them.
    """
    lines = []
    for key, call in program.calls:
        here = Caller(call.place.code, call.place.line)
        led = [each for stack in program.callers.get(call.place.code, ()) for each in stack]
        lines += [each.line for each in (*led, here) if each.code is code]
        if key == program.loss:
            break
    blocks = [getattr(tree, name, []) for name in ("body", "orelse", "finalbody")]
    while lines and blocks:
        block = blocks.pop()
        found = [each for each in block if each.lineno <= max(lines) and (each.end_lineno or 0) >= min(lines)]
        inner = [getattr(found[0], name, []) for name in ("body", "orelse", "finalbody")] if len(found) == 1 else []
        if any(inner):
            blocks = inner
        elif found:
            parts = [
                each for node in found for each in ast.walk(node) if isinstance(each, (ast.Constant, ast.JoinedStr))
            ]
            texts = [ast.unparse(each) for each in parts if each.end_lineno != each.lineno]
            is_state = any(_KEEPS_STATE.search(ast.unparse(node)) for node in found)
            has_lines = any("\\n" in text for text in texts)
            return None if has_lines or is_state else (found[0].lineno, found[-1].end_lineno or 0)
    return None
