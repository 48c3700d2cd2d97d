"""A line of the user's in a wider dtype, which has room for what the program's dtype has lost.

A whole formula may be converted at its first line, if its result fits the program's dtype. If a number does not fit
float16, only the call that gave it runs in float32, and what follows takes float32 from there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.expression import closed, expression_at, expression_of_module, is_bound, with_each
from ..program.tensors import not_finite
from .exact import CLOSE, exactly, exists, failed_at, outcome, texts_of


def widened(chains: Sequence[Chain], formula: int, module: str) -> tuple[str, int] | None:
    """A line in a wider dtype, with what it gives, and its number. None if that does not give the exact numbers.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        formula: the number of chains, from the end, that may be one formula.
        module: the path of the module that made this call; empty if it is not known.
    """
    failed = chains[-1].call
    has_half = any(tensor.dtype is torch.float16 for tensor in failed.tensors())
    at = failed_at(outcome(chains[-1].run()))
    ways = [functools.partial(_in_a_wider_dtype, chain) for chain in reversed(chains[-formula:])]
    if has_half:
        ways.append(functools.partial(_in_float32, chains, module, at))
    if failed.casts is not None:
        outside = [chain.without_autocast(failed) for chain in chains]
        ways.append(functools.partial(_in_float32, outside, module, at, f'"{failed.tensors()[0].device.type}"'))
    for way in ways:
        with contextlib.suppress(RuntimeError):  # the calls do not take these dtypes
            found = way()
            if found is not None:
                return found
    return None


def _in_a_wider_dtype(chain: Chain) -> tuple[str, int] | None:
    """The first line of a chain, behind a line that converts what comes in."""
    plain = chain.run()
    before = outcome(plain)
    coming = {key: value.detach() for key, value in plain.values.items() if key not in chain.made}
    coming = {key: value for key, value in coming.items() if value.is_floating_point()}
    dtypes = {value.dtype for value in coming.values()}
    wider = torch.float64 if dtypes <= {torch.float32, torch.float64} else torch.float32
    exact = exactly(chain, before).found
    if dtypes == {wider} or not exists(before, exact):
        return None
    found = outcome(chain.run(given={key: value.to(wider) for key, value in coming.items()}))
    near = CLOSE[before.value.dtype if wider is torch.float64 else torch.float16]
    for was, now, right in zip(before.parts, found.parts, exact.parts, strict=True):
        if bool(not_finite(now.to(was.dtype)).any()) or not _is_near(now.double(), right, near):
            return None
    calls = chain.calls()
    first = min((call.place for call in calls), key=lambda place: place.line)
    names: dict[str, None] = {}
    is_in_one_line = True
    for key in coming:
        uses = [(text, call.place.line) for call in calls for thing, text in texts_of(call) if id(thing) == key]
        name = next((text for text, _ in uses if text.isidentifier()), None)
        if name is None:
            return None
        names[name] = None
        is_in_one_line &= {line for _, line in uses} == {first.line}
    line = linecache.getline(first.filename, first.line).strip()
    if (
        not names
        or any(call.place.code is not first.code for call in calls)
        or any(is_bound(name, line) for name in names)
    ):
        return None
    method = "double" if wider is torch.float64 else "float"
    if is_in_one_line:
        code = re.sub(rf"\b({'|'.join(names)})\b", rf"\1.{method}()", line)
    else:
        code = f"{', '.join(names)} = {', '.join(f'{name}.{method}()' for name in names)}\n{line}"
    measured = f"value {number(found.value[failed_at(before)].item())}, and finite gradients"
    return f"# tried on your numbers, in {str(wider).removeprefix('torch.')}: {measured}\n{code}", first.line


def _in_float32(
    chains: Sequence[Chain], module: str, at: tuple[int, ...], autocast: str = ""
) -> tuple[str, int] | None:
    """The line of a call that left float16, with this call in float32.

    Args:
        chains, module: as of `widened`.
        at: the element that was not finite.
        autocast: the device whose autocast has to be off for it; empty if it may stay.
    """
    failed = chains[-1].call
    for chain in chains:
        again = next((call for call in chain.calls() if call.is_again(failed)), None)
        if again is None or any(call.is_cast for call in chain.calls()):
            return None
        given = {id(tensor): tensor.float() for tensor in again.tensors() if tensor.dtype is torch.float16}
        run = chain.run(given=given)
        found = outcome(run)
        arriving = [each.half() for (key, _), each in found.gradients.items() if key in given]
        if chain is chains[0] and any(bool(not_finite(each).any()) for each in arriving):
            return None
        pairs = zip(found.parts, outcome(chain.run(torch.float64, given)).parts, strict=True)
        near = CLOSE[torch.float16]  # what is computed from here on may be in float16
        if not all(_is_near(now.double(), right, near) for now, right in pairs):
            return None
    line = _line_in_float32(failed, module)
    if line is None:
        return None
    if autocast:
        line = f"with torch.autocast({autocast}, enabled=False):\n    {line}"
    measured = f"value {number(run.result[at].item())}, and finite gradients"
    return f"# tried on your numbers, in float32: {measured}\n{line}", failed.place.line


def _is_near(now: Tensor, right: Tensor, near: float) -> bool:
    largest = float(right.abs().max())
    return not bool(not_finite(now).any()) and torch.allclose(now, right, rtol=near, atol=near * largest)


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
    return None if expression.has_scope else with_each(expression.line, {t: f"{closed(t)}.float()" for t in texts})
