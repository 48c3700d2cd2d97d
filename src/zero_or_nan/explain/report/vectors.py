"""Separates equal singular values or eigenvalues, whose vectors are not unique, and have no slope.

But a loss may be the same for all such vectors, as `U @ Vh` is, or `U @ diag(S) @ Vh`. Then the loss has a gradient. If
the matrix changes a little, the values differ. PyTorch's formula in float64 then computes the gradient of the loss,
because the large slopes of the vectors cancel. If the loss does depend on the choice of the vectors, two small changes
lead to two different gradients, so there is nothing to write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..births.arithmetic import number
from ..births.chain import Chain
from ..program.source import closed, expression_at, with_each_in
from ..program.tensors import are_finite
from .again import Program, once_more
from .exact import Outcome, outcome, texts_of

_SIZES = (1e-8, 1e-8, 1e-7)
"""The sizes of the random differences that are tried."""

_NEAR = 1e-4
"""The largest difference between gradients, relative to the largest number, that counts as none."""

_WHY = """\
# the vectors of equal values are not unique, but the loss is the same for all of them: in float64, three
# small random differences give the same gradients, within {near}. Tried on your numbers: value {value}"""


def with_other_values(chains: Sequence[Chain], program: Program) -> tuple[str, int] | None:
    """A line that makes the values differ, and its number, if the loss has a gradient.

    Args:
        chains: the calls that used the vectors, the last call first, and finally the call that computed them.
        program: all known calls.
    """
    failed = chains[-1].call
    matrix = next((each for each in failed.tensors()), None)
    expression = expression_at(failed.place, failed.name)
    text = next((text for thing, text in texts_of(failed) if thing is matrix), None)
    if matrix is None or expression is None or not expression.is_whole or text is None or matrix.is_complex():
        return None
    here = {at for at, (_, call) in enumerate(program.calls) if call.is_again(failed)}
    if once_more(program, converted=lambda at, tensor: Tensor.double if at in here else None) is None:
        return None  # what follows does not take float64
    end = next(chain for chain in chains if any(call.is_again(failed) for call in chain.calls()))
    with contextlib.suppress(RuntimeError):  # the calls before it do not take float64
        found = [_outcome(end, failed.place, failed.name, size, seed) for seed, size in enumerate(_SIZES)]
        if all(_are_near(found[0], other) for other in found[1:]):
            wide = closed(text) + ("" if matrix.dtype is torch.float64 else ".double()")
            code = f"{wide} + 1e-8 * torch.randn_like({text}, dtype=torch.float64)"
            line = with_each_in([expression], {text: code})
            value = number(found[0].value.flatten()[0].item())
            return (
                None if line is None else (f"{_WHY.format(near=number(_NEAR), value=value)}\n{line}", failed.place.line)
            )
    return None


def _outcome(chain: Chain, place: object, name: str, size: float, seed: int) -> Outcome:
    """What a chain gives if the matrix of a call is another one, by a small random difference."""

    def is_here(call: object) -> bool:
        return (getattr(call, "place", None), getattr(call, "name", None)) == (place, name)

    matrices = {id(each): each for call in chain.calls() if is_here(call) for each in call.tensors()[:1]}
    generator = torch.Generator().manual_seed(seed)
    noise = {
        each.shape: size * torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each.device)
        for each in matrices.values()
    }
    return outcome(chain.through(matrices, lambda each: each.double() + noise[each.shape], is_here).run())


def _are_near(one: Outcome, other: Outcome) -> bool:
    def are_near(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=_NEAR, atol=_NEAR * float(a.abs().max()))

    pairs = zip(one.parts, other.parts, strict=True)
    return are_finite(one.parts) and all(are_near(a.double(), b.double()) for a, b in pairs)
