"""The independent reference: the gradient in float64, computed on the used elements alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .entries import Entries


def reference(
    loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, used: torch.Tensor | None = None
) -> Entries:
    """The reference gradient of `loss` at `x`, in float64, computed from the used elements alone.

    Elements that the loss does not use take no part in the computation, so they can't contaminate the result. Every
    method on a page is judged by this reference.

    Args:
        loss: a function that takes a float64 tensor and returns a scalar. If `used` is None, the tensor has all
            elements of `x`, in the shape of `x`. Otherwise it is `x[used]`.
        x: a tensor of any shape and any real dtype.
        used: a bool tensor over the leading dimensions of `x`. True means that the element counts. None means that all
            elements count.

    Returns:
        The gradient, with the shape of `x` and dtype float64. It is masked at each element where `used` is False.

    Raises:
        ValueError: if `used` is not a bool tensor over the leading dimensions of `x`, or if `loss` does not return a
            scalar.

    >>> x = torch.tensor([-1.0, 100.0])
    >>> reference(lambda x: x.exp().sum(), x, used=x < 0).texts()
    ['0.36788', '--']
    """
    if used is None:
        taken = x.detach().double().requires_grad_()
    else:
        if used.dtype is not torch.bool or used.shape != x.shape[: used.dim()]:
            raise ValueError(
                f"used must be a bool tensor over the leading dimensions of x {tuple(x.shape)}, "
                f"got {used.dtype} of shape {tuple(used.shape)}"
            )
        taken = x.detach()[used].double().requires_grad_()
    value = loss(taken)
    if value.numel() != 1:
        raise ValueError(f"loss must return a scalar, got a tensor of shape {tuple(value.shape)}")
    (gradient,) = torch.autograd.grad(value.sum(), taken, materialize_grads=True)
    gradient = gradient.cpu().clone(memory_format=torch.contiguous_format)
    if used is None:
        return Entries(gradient, torch.ones_like(gradient, dtype=torch.bool))
    used = used.cpu()
    data = gradient.new_zeros(x.shape)
    data[used] = gradient
    mask = used.reshape(used.shape + (1,) * (x.dim() - used.dim())).expand(x.shape).clone()
    return Entries(data, mask)
