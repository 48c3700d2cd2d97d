"""`grad`, `grad_and_value`, `vjp` and `jacrev` as in `torch.func`, with the gradient that `ignoring` gives."""

from .extras.func.gradients import grad, grad_and_value, jacrev, vjp

__all__ = ["grad", "grad_and_value", "jacrev", "vjp"]
