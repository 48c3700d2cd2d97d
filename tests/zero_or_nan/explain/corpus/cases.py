"""The cases of this book's chapters, and formulas by hand of which textbooks warn."""

import torch
import torch.nn.functional as F
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


@program("overflow forward log", operands="0")
def cross_entropy_by_hand():
    """softmax underflows to 0 for a class that is 200 below the best, and its log is −inf."""
    logits = torch.tensor([[200.0, 0.0, 1.0], [1.0, 2.0, 3.0]], requires_grad=True)
    target = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    p = logits.softmax(1)
    loss = -(target * p.log()).sum(1).mean()  # born
    loss.backward()


@program("overflow forward exp", entries=[(0, 0)], operands="100")
def softmax_by_hand():
    """exp(100) is more than float32 holds, and inf / inf is NaN."""
    logits = torch.tensor([[100.0, 0.0], [1.0, 2.0]], requires_grad=True)
    powers = logits.exp()  # born
    p = powers / powers.sum(1, keepdim=True)
    F.nll_loss(p.clamp(min=1e-6).log(), torch.tensor([0, 1])).backward()


@program("undefined forward div", operands="0")
def variance_of_one_sample():
    """n − 1 is 0 for a batch of one: 0 / 0."""
    encoder = nn.Linear(3, 2)
    z = encoder(torch.randn(1, 3))
    centred = z - z.mean(0)
    variance = (centred**2).sum(0) / (len(z) - 1)  # born
    loss = (variance - 1).abs().sum()
    loss.backward()


@program("undefined backward sqrt", entries=[(17, 42)], operands="0")
def one_pair_of_thousands():
    """One prototype of 80 equals one of 64 queries: one distance of 5,120 is 0."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(64, 16, generator=generator)
    prototypes = torch.randn(80, 16, generator=generator)
    prototypes[42] = queries[17]
    queries.requires_grad_()
    squared = (queries[:, None, :] - prototypes[None, :, :]).pow(2).sum(-1)
    distance = squared.sqrt()  # born
    F.cross_entropy(-distance, torch.arange(64)).backward()


@program("undefined forward div", operands="0")
def cosine_similarity_by_hand():
    """An embedding of zeros has no direction: 0 / 0."""
    words = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    query = torch.tensor([0.5, -1.0])
    lengths = torch.linalg.vector_norm(words, dim=1) * torch.linalg.vector_norm(query)
    similarity = (words @ query) / lengths  # born
    (1 - similarity).mean().backward()


@program("overflow forward log", entries=[(1,)], operands="0")
def binary_cross_entropy_by_hand():
    """sigmoid(30) is 1 in float32, and log(1 − 1) is −inf for a target of 0."""
    logits = torch.tensor([0.3, 30.0, -2.0], requires_grad=True)
    target = torch.tensor([1.0, 0.0, 0.0])
    p = torch.sigmoid(logits)
    hit = target * torch.log(p)
    miss = (1 - target) * torch.log(1 - p)  # born
    loss = -(hit + miss).mean()
    loss.backward()


@program("undefined forward div", entries=[(2,)], operands="0")
def masked_mean_of_no_token():
    """The third sentence has no token left: its mean is 0 / 0."""
    embedding = nn.Embedding(10, 1)
    tokens = torch.tensor([[1, 2, 0], [3, 0, 0], [0, 0, 0]])
    mask = (tokens != 0).float()
    values = embedding(tokens).squeeze(-1)
    mean = (values * mask).sum(1) / mask.sum(1)  # born
    mean.square().sum().backward()


@program("overflow forward atanh", entries=[(0, 1)], operands="1")
def squashed_action_at_its_bound():
    """tanh(12) is 1 in float32, and atanh(1) infinite."""
    mean = torch.zeros(2, 2, requires_grad=True)
    action = torch.tensor([[0.3, 12.0], [-1.0, 0.5]]).tanh()
    unsquashed = torch.atanh(action)  # born
    log_probability = -0.5 * (unsquashed - mean).square() - torch.log1p(-action.square() + 1e-6)
    (-log_probability.mean()).backward()


@program("contaminated forward div", operands="0")
def centroid_of_an_empty_cluster():
    """The centroid of a cluster without members is 0 / 0, and no member asks for it."""
    points = torch.randn(5, 3, requires_grad=True)
    cluster = torch.tensor([0, 0, 2, 2, 2])
    members = F.one_hot(cluster, 3).float()
    centroids = members.T @ points / members.sum(0)[:, None]  # born
    inertia = (points - centroids[cluster]).square().sum()
    inertia.backward()


@program("undefined forward matmul")
def infinity_times_zero():
    """An edge is forbidden by a cost of infinity, and a plan gives it the weight 0: 0 · inf is NaN."""
    distance, forbidden = torch.rand(2, 2), torch.tensor([[False, True], [False, False]])
    plan = torch.eye(2, requires_grad=True)
    cost = distance.masked_fill(forbidden, float("inf"))
    spent = torch.trace(cost.T @ plan)  # born
    spent.backward()
