"""Functions as users write them, with a backward of their own, and the same functions in other words."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

GOOD = torch.tensor([[0.5, -1.0, 2.0, 0.25], [1.5, 0.75, -0.5, 1.0], [-0.25, 2.0, 1.0, -1.5]])


def function(forward, backward):
    """A Function of a user's."""

    class Users(torch.autograd.Function):
        pass

    Users.forward = staticmethod(forward)
    Users.backward = staticmethod(backward)
    return Users.apply


def saving(forward):
    """A forward function that saves its inputs."""

    def run(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return forward(*inputs)

    return run


# Each function, as a Function, and in other words.


def swish(ctx, gradient):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return gradient * (s * (1 + x * (1 - s)))


def layer_norm_forward(ctx, x, scale):
    centred = x - x.mean(-1, keepdim=True)
    ctx.deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()  # not saved: an attribute
    ctx.save_for_backward(centred / ctx.deviation, scale)
    return centred / ctx.deviation * scale


def layer_norm(ctx, gradient):
    normed, scale = ctx.saved_tensors
    g = gradient * scale
    n = g.shape[-1]
    into_x = (n * g - g.sum(-1, keepdim=True) - normed * (g * normed).sum(-1, keepdim=True)) / (n * ctx.deviation)
    return into_x, (gradient * normed).sum(0)


def cross_entropy_forward(ctx, logits):
    """As fused losses do, the gradient is computed in the forward pass already."""
    target = torch.arange(len(logits)) % logits.shape[1]
    p = logits.softmax(-1)
    loss = -p.gather(1, target[:, None]).log().squeeze(1)
    p.scatter_add_(1, target[:, None], -torch.ones(len(p), 1))
    ctx.save_for_backward(p)
    return loss


def cross_entropy(ctx, gradient):
    (p,) = ctx.saved_tensors
    if torch.equal(gradient, torch.ones_like(gradient)):
        return p
    return p * gradient[:, None]


ORDER = torch.tensor([2, 0, 3, 1])


def permuted_forward(ctx, x):
    ctx.order = ORDER[: x.shape[1]]
    ctx.save_for_backward(x)
    return x[:, ctx.order].exp()


def permuted_back(ctx, gradient):
    (x,) = ctx.saved_tensors
    out = torch.empty_like(x)
    out[:, ctx.order] = gradient * x[:, ctx.order].exp()
    return out


def own_clone(ctx, gradient):
    (x,) = ctx.saved_tensors
    out = gradient.clone()
    out.mul_(x).mul_(2)
    out[:, 0] *= 3.0
    out.view(-1)[:] *= 1.0
    return out


def two_results_forward(ctx, x):
    ctx.save_for_backward(x)
    ctx.mark_non_differentiable(rank := x.argsort(-1))
    return x.exp(), x.square(), rank


def two_results(ctx, into_exp, into_square, into_rank):
    (x,) = ctx.saved_tensors
    return into_exp * x.exp() + 2 * x * into_square


def asked(ctx, gradient):
    """A decision that contaminated numbers don't change."""
    (x,) = ctx.saved_tensors
    if not bool(gradient.any()) or gradient.abs().max().item() > 1e6:
        return torch.zeros_like(x)
    return gradient * x.exp()


def apply_after(forward, backward):
    apply = function(saving(forward), backward)
    return lambda x, w: apply(x * w)


W = [1.0, 2.0, 0.5, -1.0]
MATRIX = torch.tensor([[1.0, 2.0, -1.0, 0.5], [0.25, -1.0, 1.0, 1.0]])

# How each is called with rows and a weight, and the same in other words.
PROGRAMS = {
    "layer_norm": (
        lambda x, w: function(layer_norm_forward, layer_norm)(x * w, w),
        lambda x, w: F.layer_norm(x * w, (4,), w, None, 1e-5),
    ),
    "cross entropy": (
        lambda x, w: function(cross_entropy_forward, cross_entropy)(x * w)[:, None],
        lambda x, w: torch.stack([-row.log_softmax(0)[i] for i, row in zip([0, 1, 3], x * w, strict=True)])[:, None],
    ),
    "scatter": (lambda x, w: function(permuted_forward, permuted_back)(x * w), lambda x, w: (x * w)[:, ORDER].exp()),
    "in place on its own clone": (
        apply_after(lambda x: x**2 * torch.tensor([3.0, 1, 1, 1]), own_clone),
        lambda x, w: (x * w) ** 2 * torch.tensor([3.0, 1, 1, 1], dtype=x.dtype),
    ),
    "two results": (
        lambda x, w: sum(function(two_results_forward, two_results)(x * w)[:2]),
        lambda x, w: (x * w).exp() + (x * w).square(),
    ),
    "complex numbers, summed": (  # the cotangent's elements share memory
        lambda x, w: (
            apply_after(torch.exp, lambda ctx, g: g * ctx.saved_tensors[0].exp().conj())(1j * x, w).sum(1, True).real
        ),
        lambda x, w: (1j * x * w).exp().sum(1, True).real,
    ),
    "a decision": (apply_after(torch.exp, asked), lambda x, w: (x * w).exp()),
    "in a checkpoint": (
        lambda x, w: checkpoint(apply_after(F.silu, swish), x, w, use_reentrant=False),
        lambda x, w: F.silu(x * w),
    ),
}


def gradient_of(program, rows, used, backward, dtype=torch.float32):
    weight = torch.tensor(W, dtype=dtype, requires_grad=True)
    y = program(rows.to(dtype), weight)
    backward((y[used] * torch.linspace(1, 2, y.shape[1], dtype=dtype)).sum())
    return weight.grad
