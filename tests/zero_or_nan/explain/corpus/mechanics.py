"""The ways in which autograd is used: functions of one's own, edits in place, checkpoints, hooks, views."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .program import program

nan = float("nan")


@program("undefined backward Root", entries=[(1,)])
def function_whose_backward_divides_by_zero():
    """A function of one's own divides by its result, and the result is 0."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            y = x.sqrt()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensors
            return g / (2 * y)

    x = torch.tensor([4.0, 0.0, 1.0], requires_grad=True)
    y = Root.apply(x)  # born
    y.mean().backward()


@program("undefined forward LogLikelihood")
def function_whose_forward_takes_log_zero():
    """A function of one's own takes the log of a 0."""

    class LogLikelihood(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p: Tensor) -> Tensor:
            ctx.save_for_backward(p)
            return p.log().sum()

        @staticmethod
        def backward(ctx, g: Tensor) -> Tensor:
            (p,) = ctx.saved_tensors
            return g / p

    p = torch.tensor([0.5, 0.0], requires_grad=True)
    loss = -LogLikelihood.apply(p)  # born
    loss.backward()


@program("undefined forward div", operands="0")
def division_in_place():
    """An edit in place divides the sums by counts, of which one is 0."""
    values = torch.randn(3, 2, requires_grad=True)
    sums = values * 2
    sums.div_(torch.tensor([[1.0], [0.0], [2.0]]))  # born
    sums.mean().backward()


@program("contaminated backward sqrt", entries=[(0, 1)])
def root_in_place_then_overwritten():
    """√0 in place, and the entry is assigned over: the loss doesn't depend on it."""
    x = torch.tensor([[1.0, 0.0], [4.0, 9.0]], requires_grad=True)
    y = x * 1
    y.sqrt_()  # born
    y = y.clone()
    y[0, 1] = 0.0
    y.sum().backward()


@program("contaminated forward exp")
def checkpoint_that_is_not_reentrant():
    """exp overflows under `where` inside of a checkpointed block, and is computed twice."""
    layer = nn.Linear(3, 3)

    def block(x: Tensor) -> Tensor:
        h = layer(x) * 100
        power = h.exp()  # born
        return torch.where(h < 5, power, h)

    x = torch.randn(4, 3, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).mean().backward()


@program("contaminated forward exp")
def checkpoint_that_is_reentrant():
    """The same with the older form, whose backward is a pass within the pass."""
    layer = nn.Linear(3, 3)

    def block(x: Tensor) -> Tensor:
        h = layer(x) * 100
        power = h.exp()  # born
        return torch.where(h < 5, power, h)

    x = torch.randn(4, 3, requires_grad=True)
    checkpoint(block, x, use_reentrant=True).mean().backward()


@program("undefined backward sqrt")
def root_at_zero_in_a_checkpoint():
    """The block's forward is finite both times; its backward takes sqrt'(0)."""
    layer = nn.Linear(2, 2, bias=False)

    def length(x: Tensor) -> Tensor:
        squared = layer(x).square().sum(1)
        return squared.sqrt()  # born

    x = torch.tensor([[0.0, 0.0], [1.0, -1.0]], requires_grad=True)
    checkpoint(length, x, use_reentrant=False).sum().backward()


@program("undefined backward div", operands="0")
def hook_that_normalises():
    """A tensor's hook divides the gradient by its norm, which is 0 where relu was flat."""
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.bias, -100.0)
    h = layer(torch.randn(4, 3))

    def normalise(g: Tensor) -> Tensor:
        return g / g.norm()  # born

    h.register_hook(normalise)
    h.relu().sum().backward()


@program("overflow forward div", operands="0")
def weights_without_a_gradient():
    """Importance weights are normalised under no_grad, and all of them have underflowed to 0."""
    model = nn.Linear(3, 1)
    with torch.no_grad():
        weight = torch.exp(torch.tensor([-200.0, -300.0, -250.0]))
        weight = weight / weight.sum()  # born
    error = model(torch.randn(3, 3)).squeeze(1).square()
    (weight * error).sum().backward()


@program("undefined forward log", entries=[(0,)], operands="0")
def log_through_a_view():
    """The log is written into a view, and its base goes into the loss."""
    p = torch.tensor([[0.0, 0.4], [0.3, 0.3]], requires_grad=True)
    table = p * 1
    row = table[0]
    row.log_()  # born
    table.sum().backward()


@program("undefined forward div", operands="0")
def result_written_into_a_buffer():
    """torch.div with out=: a buffer of weights gets 0 / 0."""
    model = nn.Linear(2, 3)
    hits, seen = torch.tensor([3.0, 0.0, 1.0]), torch.tensor([4.0, 0.0, 2.0])
    rate = torch.empty(3)
    torch.div(hits, seen, out=rate)  # born
    (model(torch.randn(5, 2)) * rate).square().mean().backward()


@program("undefined forward _foreach_div")
def foreach_in_an_optimizer():
    """All gradients are divided by their norms at once; one has the norm 0, and the next loss is NaN."""
    used, unused = nn.Linear(3, 1), nn.Linear(3, 1)
    parameters = [*used.parameters(), *unused.parameters()]
    for _ in range(2):
        loss = (used(torch.randn(4, 3)) + 0 * unused(torch.randn(4, 3))).square().mean()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            torch._foreach_div_(gradients, torch._foreach_norm(gradients))  # born
            torch._foreach_add_(parameters, gradients, alpha=-0.1)


@program("overflow forward log", operands="0")
def forward_alone():
    """No backward at all: a score that nothing uses any further is NaN."""
    model = nn.Linear(3, 4)
    p = (model(torch.randn(2, 3)) * 300).softmax(1)
    surprise = p.log()  # born
    return (p * surprise).sum(1)


@program("contaminated forward log", entries=[(1,)])
def two_passes_over_one_graph():
    """torch.autograd.grad twice over a graph in which log 0 was selected away."""
    x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    y = x.log()  # born
    kept = y[x > 0]
    torch.autograd.grad(kept.sum(), x, retain_graph=True)
    torch.autograd.grad(kept.prod(), x)


@program("undefined backward pow")
def second_derivative_at_a_kink():
    """|x| ** 1.5 has a slope at 0, which is finite; the slope of its slope is not."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    energy = (x.abs() ** 1.5).sum()  # born
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    force.sum().backward()


@program("undefined forward div", operands="0")
def module_hook_that_rescales():
    """A forward hook scales a layer's output to unit length, and relu left a row of zeros."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.zeros_(net[0].bias)

    def unit(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output / output.norm(dim=1, keepdim=True)  # born

    net[1].register_forward_hook(unit)
    x = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    F.mse_loss(net(x), torch.ones(2, 1)).backward()
