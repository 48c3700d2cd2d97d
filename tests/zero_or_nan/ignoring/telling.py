"""What a call warns of, and two Functions of a user's: one that a pass can follow, and one that it can't."""

import warnings

import numpy as np
import torch


def told(function):
    """What a function returns, and the messages by which `ignoring` warns meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, [str(one.message) for one in caught if str(one.message).startswith("ignoring")]


class ByOperators(torch.autograd.Function):
    """The exponential. Its derivative is infinite if the exponential overflows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Exponential(ByOperators):
    """The same, with a derivative that NumPy computes."""

    @staticmethod
    def backward(ctx, gradient):
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(gradient.numpy() * ctx.saved_tensors[0].numpy())
