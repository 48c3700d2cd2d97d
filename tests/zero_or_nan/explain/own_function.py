"""A function of the user's own."""

import torch


def exponential():
    """A new class each time: `ignoring.function` keeps what it knows of a class."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    return Exp
