"""A mask that a later line multiplies by. 0 times NaN is NaN, so it has to leave the number out where it is made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..births.call import Call
from ..births.chain import Chain
from ..program.source import expression_at, is_rebound
from ..program.tensors import not_finite
from .exact import outcome, texts_of


def masked_before(chains: Sequence[Chain]) -> tuple[str, int] | None:
    """The line of the failed call with the mask of a later line in it, and its number; None if there is no such mask.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
    """
    failed = chains[-1].call
    bad = not_finite(outcome(chains[-1].run()).value)
    expression = expression_at(failed.place, failed.name)
    if expression is None or not expression.is_whole or expression.has_scope:
        return None
    operands = {text for _, text in texts_of(failed)}
    for later in reversed(chains[:-1]):
        for mask, text in texts_of(later.call) if later.call.name == "mul" else ():
            is_here = later.call.place.code is failed.place.code and text.isidentifier()
            is_operand = text in operands  # p * log(p) has no mask
            if not is_here or is_operand or not _leaves_out(mask, bad):
                continue
            if is_rebound(text, failed.place, later.call.place):
                continue
            with_mask = _with(mask, failed)
            if all(outcome(each.with_calls(with_mask).run()).is_finite for each in chains):
                told = f"# {text} is 0 here, and line {later.call.place.line} multiplies by it, but 0 times NaN is NaN."
                safe = f"torch.where({text} == 0, 0, {ast.unparse(expression.node)})"
                tried = "# Tried on your numbers, what follows is finite, with finite gradients:"
                return f"{told}\n{tried}\n{expression.replaced_by(safe)}", failed.place.line
    return None


def _leaves_out(mask: Any, bad: Tensor) -> bool:
    """Whether a factor is 0, or False, for each of these elements, and not for all that there are."""
    if not isinstance(mask, Tensor) or mask.requires_grad or mask.shape != bad.shape:
        return False
    return bool((mask[bad] == 0).all()) and bool((mask != 0).any())


def _with(mask: Tensor, at: Call) -> Callable[[Call], Call]:
    """Makes the result of one call 0 where a mask is."""

    def changed(call: Call) -> Call:
        def run(*args: Any, **named: Any) -> Any:
            return torch.where(mask == 0, 0, call.func(*args, **named))

        return call._replace(func=run) if call.is_again(at) else call

    return changed
