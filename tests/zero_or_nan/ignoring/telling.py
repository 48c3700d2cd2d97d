"""What a call warns of, and a user's Function that no pass can follow."""

import warnings

import numpy as np
import torch


def told(function):
    """What a function returns, and the messages by which `ignoring` warns meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, [str(one.message) for one in caught if str(one.message).startswith("ignoring")]


class Exponential(torch.autograd.Function):
    """Its derivative is computed by NumPy, and is infinite if the exponential overflows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(gradient.numpy() * ctx.saved_tensors[0].numpy())
