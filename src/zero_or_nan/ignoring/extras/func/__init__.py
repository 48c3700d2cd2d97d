"""`torch.func` with the gradient that `ignoring` gives, and `ignoring.grad` inside of its transforms."""

from . import gradients, vmap

__all__ = ["gradients", "vmap"]
