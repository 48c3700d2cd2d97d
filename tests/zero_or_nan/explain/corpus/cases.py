"""The cases of this book's chapters."""

import torch
from torch import Tensor, nn

from zero_or_nan import ignoring

from .program import program

nan = float("nan")


@ignoring.function
class Expm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y


@program("contaminated forward exp", thread="pytorch#10729", entries=[(9,), (10,)], operands="90")
def where_over_exp():
    """exp overflows in the branch that `where` drops, and 0 * inf comes back."""
    x = torch.tensor([-10.0, -5, 0, 5, 10, 50, 60, 70, 80, 90, 100], requires_grad=True)
    y = x.exp()  # born
    loss = torch.where(x < 0, y, 1.0).sum()
    loss.backward()


@program("contaminated forward div", thread="pytorch#52248")
def where_over_division():
    """a / 0 stands in the branch of a scalar `where` that is not taken."""
    a = torch.tensor(0.7, requires_grad=True)
    flag = torch.tensor(False)
    ratio = a / 0  # born
    loss = torch.where(flag, ratio, torch.ones(()))
    torch.autograd.grad(loss, a)


@program("contaminated forward mul", thread="pytorch#67180")
def nansum_of_a_product():
    """nansum leaves the NaN of the data out, and its product's derivative is 0 * NaN all the same."""
    a = torch.tensor([1.0, 2.0, nan])
    b = torch.tensor(1.0, requires_grad=True)
    scaled = a * b  # born
    loss = scaled.nansum()
    loss.backward()


@program("contaminated forward sub", thread="pytorch#67180", entries=[(0, 1), (2, 0)])
def nanmean_of_squares():
    """Missing targets are NaN, nanmean leaves them out, and the square's derivative is 2 * NaN * 0."""
    model = nn.Linear(3, 2)
    target = torch.tensor([[0.1, nan], [0.3, 0.2], [nan, 0.4], [0.0, 0.1]])
    residual = model(torch.randn(4, 3)) - target  # born
    loss = (residual**2).nanmean()
    loss.backward()


@program("contaminated forward div", thread="pytorch#4132", entries=[(0,)], operands="0")
def division_under_a_mask():
    """x / 0 is left out by a mask, and its derivative 1 / 0 is multiplied by the mask's 0."""
    x = torch.tensor([1.0, 1.0], requires_grad=True)
    divisor = torch.tensor([0.0, 1.0])
    y = x / divisor  # born
    loss = y[divisor != 0].sum()
    loss.backward()


@program("contaminated forward linear", thread="discuss.pytorch.org#135053")
def rows_sliced_away():
    """Rows of NaN pass a layer and are sliced away; the weight's gradient sums 0 * NaN over them."""
    torch.manual_seed(137)
    layer = nn.Linear(8, 1)
    batch = torch.tensor([*torch.rand(4, 8).tolist(), *[[nan] * 8] * 4])
    output = layer(batch)  # born
    output[:4].sum().backward()


@program("undefined backward sqrt", thread="pytorch#6394")
def distance_of_equal_points():
    """A norm by hand has no slope at 0: sqrt'(0) is infinite, and the square's slope is 0."""
    anchor = torch.tensor([[1.0, 2.0], [0.0, 3.0]], requires_grad=True)
    positive = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    squared = ((anchor - positive) ** 2).sum(1)
    distance = squared.sqrt()  # born
    distance.mean().backward()


@program("undefined forward log", operands="0")
def weight_of_zero_in_the_gradient_argument():
    """A 0 in backward's `gradient` is a number: it uses log 0, and 0 * inf is NaN."""
    x = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    y = torch.log(x)  # born
    y.backward(gradient=torch.tensor([1.0, 0.0, 1.0]))


@program("contaminated forward Expm", thread="pytorch#10729")
def function_of_ones_own_under_where():
    """An autograd.Function overflows like the function that it copies, in entries that `where` drops."""
    x = torch.tensor([1.0, 2.0, 200.0], requires_grad=True)
    y = Expm.apply(x)  # born
    torch.where(x < 50, y, x).sum().backward()
