"""`torch.func` with the gradient that `ignoring` gives, and `ignoring.grad` inside of its transforms."""

from . import call, gradients, vmap

__all__ = ["call", "gradients", "vmap"]
