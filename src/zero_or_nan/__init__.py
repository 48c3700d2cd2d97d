"""Is a PyTorch gradient zero, undefined, or only rounded?

- `ignoring`: `backward` and `grad` that skip what the loss ignored, with the forward code as it is.
- `explain`: where a NaN was born that reached the loss or a gradient, and what to do about it.
- `in_float64`, `in_float32`: the same code in a wider dtype, for a number that a smaller one loses.

Needs torch, 2.6 or newer, and nothing else. Importing it changes nothing: no warning filters, no patches.

>>> import torch
>>> from zero_or_nan import ignoring
>>> x = torch.tensor([1.0, 100.0], requires_grad=True)
>>> loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
>>> ignoring.backward(loss)  # in place of loss.backward()
>>> x.grad
tensor([2.7183, 0.0000])
"""

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise ImportError(f"zero_or_nan needs PyTorch 2.6 or newer, and this is {torch.__version__}: update PyTorch")

try:
    from . import ignoring
    from .explain import explain
    from .wider import in_float32, in_float64
except Exception as error:
    from .selfcheck.lacking import lacking

    names = "\n".join(lacking())
    if not names:
        raise
    raise ImportError(
        f"zero_or_nan can't be imported: {error}. Install another release of PyTorch, or a newer zero_or_nan.\n{names}"
    ) from error

__all__ = ["explain", "ignoring", "in_float32", "in_float64"]

__version__ = "0.1.0"
