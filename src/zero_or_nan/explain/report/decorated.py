"""Runs one of the user's functions in float32 or float64, by a decorator above it.

A number may be lost in one line and be needed in another, so that no line alone repairs the formula. The calls that ran
during the function run again in the wider dtype, and the others as before. The innermost function that is enough gets
the decorator.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Collection, Sequence
from types import CodeType
from typing import NamedTuple

import torch

from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.code import Place
from ..program.source import parsed_file
from ..program.tensors import are_finite
from .again import Again, Program, agree, once_more
from .exact import Outcome, exactly, exists, failed_at, outcome
from .limits import is_steady

_NEAR = 1e-3
"""The largest relative error of the loss and of each gradient."""

_AFTER = 10
"""How many calls, from the failed one on, may be part of the same formula."""

_CODE = """\
# {dtype} inside of this function, whose results get their dtype back.
# Tried on your numbers: {told}
from zero_or_nan import in_{dtype}

{head}"""


class Decorated(NamedTuple):
    """The first lines of a function, with a decorator.

    Attributes:
        text: the lines, below a comment with what they give on the user's numbers.
        replaces, until: the numbers of the first and the last line that they replace.
    """

    text: str
    replaces: int
    until: int


def in_a_wider_dtype(chains: Sequence[Chain], program: Program) -> Decorated | None:
    """A function in a wider dtype, which gives the exact numbers; None if no function is enough.

    Float32 is tried first where the function computes in 16 bits. If the exact loss is not known, the first result
    decides that its dtype has room for.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        program: all known calls.
    """
    failed = chains[-1].call
    functions = [(code, _function(code, failed.place)) for code in reversed(_around(failed, program))]
    if program.is_rounded_before or program.right is not None and not program.is_steady:
        return None
    for code, node in functions:
        for dtype in _wider(failed) if node is not None else ():
            told = _told(dtype, code, chains, program)
            if told and node is not None:
                first, name = _first(node), str(dtype).removeprefix("torch.")
                lines = [linecache.getline(code.co_filename, at).strip() for at in range(first, node.lineno + 1)]
                head = "\n".join([*lines[:-1], f"@in_{name}()", lines[-1]])
                return Decorated(_CODE.format(dtype=name, told=told, head=head), first, node.lineno)
    return None


def _told(dtype: torch.dtype, code: CodeType, chains: Sequence[Chain], program: Program) -> str:
    """What a function in a wider dtype gives, as half a sentence; empty if this is wrong."""
    if program.right is not None:
        inside = {at for at, (_, call) in enumerate(program.calls) if code in _around(call, program)}
        return program.right.told if agree(_in_dtype(dtype, program, inside), program.right, _NEAR) else ""
    if program.exact is not None:
        return ""  # it has no exact loss
    for chain in reversed(chains[-_AFTER:]):
        before = outcome(chain.run())
        exact = exactly(chain, before).found
        if exists(before, exact):
            is_inside = all(code in _around(call, program) for call in chain.calls())
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
    return [torch.float32, torch.float64] if sizes == {2} else [torch.float64]


def _around(call: Call, program: Program) -> tuple[CodeType, ...]:
    """The user's functions during which a call ran, the outermost first."""
    return (*program.callers.get(call.place.code, ()), call.place.code)


def _in_dtype(dtype: torch.dtype, program: Program, inside: Collection[int]) -> Again | None:
    """The loss and its gradients if some calls run in a dtype; None if another number then decides what code runs."""
    plain, found = once_more(program), once_more(program, dtype=dtype, only=frozenset(inside))
    if plain is None or found is None:
        return None
    read = {id(each) for _, call in program.calls for each in call.tensors()}
    decisions = found.decisions.keys() - read
    return found if all(torch.equal(found.decisions[key], plain.decisions[key]) for key in decisions) else None


def _function(code: CodeType, place: Place) -> ast.FunctionDef | None:
    """The definition of a function; None if it is no function that may get the decorator."""
    is_here = code.co_filename == place.filename and not code.co_flags & inspect.CO_GENERATOR
    tree = parsed_file(place) if is_here else None
    for node in ast.walk(tree or ast.Pass()):
        if isinstance(node, ast.FunctionDef) and (node.name, _first(node)) == (code.co_name, code.co_firstlineno):
            has_it = any("in_float" in ast.unparse(each) for each in node.decorator_list)
            return None if has_it else node
    return None


def _first(node: ast.FunctionDef) -> int:
    """The number of the first line of a function, or of its first decorator."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])
