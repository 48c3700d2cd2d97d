"""Judges a gradient with one word, as the book's verdicts do: how far, and how, it differs from the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

WORDS = ("right", "rounded", "wrong", "contaminated", "missing")
"""The words from best to worst. A gradient gets the word of its worst element.

- *right*: within the stated ulps of the reference, or as undefined as the reference. If the loss does not use the
  element: zero.
- *rounded*: further from the reference, but at most `ROUNDED` ulps.
- *wrong*: finite, but not the gradient; or not as undefined as the reference.
- *contaminated*: non-finite although the reference is finite or the loss does not use the element.
- *missing*: no gradient at all.
"""

Words = tuple[str, str]
"""Plain PyTorch's word, and ours."""

FIXED: Words = ("contaminated", "right")

ULPS = 4
"""Units in the last place of float32 that still count as *right*: `exp` and `log` differ by a few between devices."""
ROUNDED = 64
"""The distance from the reference, in ulps, beyond which an element is no longer *rounded* but *wrong*."""


@dataclass(frozen=True)
class Reference:
    """The right gradient in float64 on the CPU, and where the loss uses the element (`used`, bool, same shape)."""

    values: Tensor
    used: Tensor


def reference(loss: Callable[[Tensor], Tensor], x: Tensor, used: Tensor | None = None) -> Reference:
    """The gradient of a loss in float64, on the CPU, with the unused elements never computed.

    Args:
        loss: takes `x[used]`, or all of `x`, in float64, and returns a scalar.
        x: a real tensor of any shape, dtype and device.
        used: bool, over the leading dimensions of `x`; True if the loss uses the element. None: it uses all.

    >>> x = torch.tensor([-1.0, 100.0])
    >>> reference(lambda x: x.exp().sum(), x, used=x < 0).values
    tensor([0.3679, 0.0000], dtype=torch.float64)
    """
    whole = x.detach().cpu().double()
    used = torch.ones(x.shape, dtype=torch.bool, device="cpu") if used is None else used.cpu()
    taken = (whole if used.all() else whole[used]).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(taken), taken)
    values = torch.zeros_like(whole)
    values[used] = gradient if gradient.shape != x.shape else gradient[used]
    return Reference(values, used.reshape(used.shape + (1,) * (x.dim() - used.dim())).expand(x.shape))


def word(gradient: Tensor | None, wanted: Reference, ulps: int = ULPS) -> str:
    """The word of `WORDS` for a gradient in float32, on any device.

    >>> wanted = Reference(torch.ones(2, dtype=torch.float64), torch.tensor([True, False]))
    >>> word(torch.tensor([1.0, 0.0]), wanted), word(torch.tensor([1.0, torch.nan]), wanted)
    ('right', 'contaminated')
    """
    if gradient is None:
        return "missing"
    got, want, used = gradient.detach().cpu(), wanted.values.float(), wanted.used
    if bool((~got.isfinite() & (~used | want.isfinite())).any()):
        return "contaminated"
    undefined = ~want.isfinite()
    far = (_rank(want) - _rank(got)).abs().masked_fill(~used | undefined, 0)
    same = (want == got) | (want.isnan() & got.isnan())
    if bool((used & undefined & ~same).any() | (~used & (got != 0)).any() | (far > ROUNDED).any()):
        return "wrong"
    return "rounded" if bool((far > ulps).any()) else "right"


def _rank(x: Tensor) -> Tensor:
    """The position of each element among all float32 numbers, counted from zero: a difference of ranks is in ulps."""
    bits = x.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
