"""Loops, precision, accumulation, several passes, and what comes in with data."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import descend, program

inf, nan = float("inf"), float("nan")


@program("undefined forward div", operands="0")
def seventh_batch_is_empty():
    """The mask of the seventh batch selects nothing: 0 / 0, and the weights are NaN from there on."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x, keep = torch.randn(4, 3), (torch.tensor([0.2, 0.9, 0.5, 0.1]) > (2.0 if step == 7 else 0.4)).float()
        error = (model(x).squeeze(1) - x.sum(1)).square() * keep
        loss = error.sum() / keep.sum()  # born
        descend(optimizer, loss)


@program("overflow forward mse_loss")
def learning_rate_too_large():
    """Each step multiplies the loss by some 10¹⁷; the fourth is more than float32 holds, and the weights follow."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e8)
    x = torch.randn(16, 2)
    y = x.sum(1, keepdim=True)
    for _ in range(6):
        loss = F.mse_loss(model(x), y)  # born
        descend(optimizer, loss)


@program("overflow forward linear", module="2")
def autocast_overflows():
    """Under autocast the layer's product is a float16, and 7e5 is infinite there."""
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
    nn.init.constant_(model[2].weight, 100.0)
    x = torch.full((2, 3), 500.0)
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = model(x)  # born
    F.l1_loss(prediction.float(), torch.zeros(2, 1)).backward()


@program("contaminated forward exp")
def penalty_on_a_gradient_under_where():
    """The inner gradient is NaN where exp overflowed under `where`, and so is its penalty."""
    x = torch.tensor([0.5, 100.0, -1.0], requires_grad=True)
    power = x.exp()  # born
    energy = torch.where(x < 50, power, x).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    force.square().sum().backward()


@program("undefined backward sqrt")
def second_of_two_losses():
    """The first loss and its backward are fine; the second takes a root at 0."""
    trunk = nn.Linear(3, 2)
    features = trunk(torch.zeros(2, 3)) - trunk.bias
    reconstruction = (features - 1).square().mean()
    reconstruction.backward(retain_graph=True)
    sparsity = features.abs().sqrt().sum()  # born
    sparsity.backward()


@program("overflow forward log", "overflow backward sqrt")
def two_heads_two_mistakes():
    """Two losses on two heads, each with a mistake of its own: log 0, and sqrt'(0)."""
    shared = nn.Linear(4, 4)
    classify, locate = nn.Linear(4, 3), nn.Linear(4, 2)
    h = shared(torch.randn(5, 4)).relu()
    p = (classify(h) * torch.tensor([1.0, 1.0, 1000.0])).softmax(1)
    surprise = -p.log().mean()  # born 1
    where = locate(h)
    gap = where - where.detach()
    distance = gap.square().sum(1).sqrt().mean()  # born 2
    (surprise + distance).backward()


@program("contaminated forward exp", "overflow forward exp")
def ignored_here_and_used_there():
    """Two exponentials overflow: one under `where`, one in the loss."""
    x = torch.tensor([1.0, 95.0], requires_grad=True)
    y = torch.tensor([2.0, 99.0], requires_grad=True)
    mild = x.exp()  # born 1
    left = torch.where(x < 50, mild, x).sum()
    right = torch.exp(y).sum()  # born 2
    left.backward()
    right.backward()


@program("bad input forward mse_loss", "undefined forward div")
def bad_label_then_empty_batch():
    """Two models: the first meets a label that is NaN, the second a batch without a count."""
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    label = torch.tensor([[1.0], [nan]])
    loss = F.mse_loss(first(torch.randn(2, 2)), label)  # born 1
    loss.backward()
    weight = torch.zeros(2, 1)
    average = (second(torch.randn(2, 2)) * weight).sum() / weight.sum()  # born 2
    average.backward()


@program("bad input forward mse_loss", operands="nan")
def target_with_a_nan():
    """One of the targets is NaN, and the loss uses it."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    target = torch.tensor([[0.1], [nan], [0.3]])
    loss = nn.MSELoss()(model(torch.randn(3, 3)), target)  # born
    loss.backward()


@program("bad input forward linear", module="0")
def batch_with_a_nan():
    """One pixel of the batch is NaN, and every weight's gradient is."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    batch = torch.tensor([[0.2, 0.1, 0.5, 0.3], [0.9, nan, 0.4, 0.8]])
    logits = model(batch)  # born
    F.cross_entropy(logits, torch.tensor([0, 1])).backward()


@program("bad input forward embedding", module="tokens")
def embedding_row_that_is_nan():
    """The row of one token is NaN in the table that was loaded, and the sentence has that token."""

    class Bag(nn.Module):
        def __init__(self, table: Tensor):
            super().__init__()
            self.tokens = nn.Embedding.from_pretrained(table, freeze=False)
            self.head = nn.Linear(2, 2)

        def forward(self, sentence: Tensor) -> Tensor:
            words = self.tokens(sentence)  # born
            return self.head(words.mean(1))

    bag = Bag(torch.tensor([[0.1, 0.2], [nan, nan], [0.3, -0.4]]))
    F.cross_entropy(bag(torch.tensor([[0, 1, 2], [2, 2, 0]])), torch.tensor([0, 1])).backward()


@program("bad input forward mul", entries=[(1, 2)])
def padding_times_a_float_mask():
    """A mask of zeros and ones does not ignore: NaN · 0 is NaN."""
    series = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, nan]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    weight = torch.ones(3, requires_grad=True)
    kept = series * mask  # born
    (kept @ weight).square().sum().backward()


@program("contaminated forward exp", entries=[(2,)])
def clipped_policy_ratio():
    """PPO takes the clipped ratio; the other one overflowed, and minimum sends it a 0."""
    log_p = torch.tensor([-0.5, -1.0, -0.1], requires_grad=True)
    old = torch.tensor([-0.4, -1.2, -120.0])
    advantage = torch.tensor([1.0, -0.5, 0.7])
    ratio = torch.exp(log_p - old)  # born
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    (-surrogate.mean()).backward()


@program("undefined forward cross_entropy")
def classes_that_weigh_nothing():
    """Every example is of a class whose weight is 0: a weighted mean of 0 / 0."""
    model = nn.Linear(3, 3)
    weight = torch.tensor([0.0, 1.0, 1.0])
    loss = F.cross_entropy(model(torch.randn(4, 3)), torch.zeros(4, dtype=torch.long), weight=weight)  # born
    loss.backward()


@program("undefined forward div", operands="0")
def gradient_scaled_by_its_own_norm():
    """A hand-made optimizer divides the gradient by its norm, and one parameter has none: the next loss is NaN."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.constant_(net[0].bias, -100.0)
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(4, 2)).square().mean().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                direction = parameter.grad / parameter.grad.norm()  # born
                parameter -= 0.01 * direction


@program("overflow forward exp")
def variational_autoencoder():
    """The encoder's log variance is 180 for an outlier: exp overflows in the divergence."""

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_variance = self.encode(x).chunk(2, dim=1)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)  # born
            return self.decode(mean), divergence

    model = Autoencoder()
    x = torch.randn(3, 4)
    nn.init.ones_(model.encode.weight)
    x[1] = 45.0
    reconstruction, divergence = model(x)
    (F.mse_loss(reconstruction, x) + divergence.mean()).backward()


@program("bad input forward mul", operands="nan")
def average_that_was_nan():
    """The average of the weights comes from a checkpoint with a NaN, and goes on from there."""
    weight = torch.ones(3, requires_grad=True)
    average = torch.tensor([1.0, nan, 1.0])
    with torch.no_grad():
        average.mul_(0.9).add_(weight, alpha=0.1)  # born
    (weight * average).sum().backward()


@program("bad input forward logit", operands="nan")
def missing_probability():
    """A probability is missing; the function has no pole there."""
    scale = torch.ones(2, requires_grad=True)
    p = torch.tensor([nan, 0.3])
    (p.logit() * scale).sum().backward()  # born
