"""The essence of public threads, in our own code: each says which in `thread`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import program

inf, nan = float("inf"), float("nan")


@program("contaminated forward div", thread="pytorch#16317", entries=[(0,)])
def zero_over_zero_removed():
    """0 / 0 is replaced by 0 after the division."""
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    n = torch.tensor([0.0, 2.0])
    y = x / n  # born
    torch.where(n == 0, torch.zeros_like(y), y).sum().backward()


@program("contaminated forward sub", thread="pytorch#89543")
def error_that_skips_missing_values():
    """The missing observations are dropped after the square, whose slope is 2 · NaN."""
    observed = torch.tensor([0.9, nan, 0.7, nan, nan, 1.3])
    estimate = nn.Parameter(torch.randn(6))
    missing = observed.isnan()
    r = estimate - observed  # born
    loss = torch.where(missing, 0.0, r**2).sum() / (~missing).sum()
    loss.backward()


@program("contaminated forward mul", thread="pytorch#94700")
def nan_to_num_of_a_loss():
    """nan_to_num puts a 0 in the place of NaN, and backward multiplies NaN by it."""
    x = torch.tensor([0.3, -0.7], requires_grad=True)
    w = torch.tensor([nan, 2.0])
    terms = x * w  # born
    terms.nan_to_num(0.0).sum().backward()


@program("undefined forward multi_head_attention_forward", thread="pytorch#41508")
def padded_sentence_in_attention():
    """Every key of the second sentence is padding, and the weights are asked for: softmax of nothing but −inf."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    words = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    attended, _ = attention(words, words, words, key_padding_mask=padding)  # born
    attended.square().mean().backward()


@program("contaminated forward multi_head_attention_forward", thread="pytorch#41508")
def padded_sentence_left_out():
    """The padded sentence is NaN and sliced away; its NaN comes back through the projections that all share."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    words = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    attended, _ = attention(words, words, words, key_padding_mask=padding)  # born
    attended[:1].square().mean().backward()


@program("overflow forward linear", thread="transformers#5651", module="wo")
def feed_forward_in_half_precision():
    """The second projection of a T5 block gives 1e5, and float16 ends at 65,504."""

    class DenseReluDense(nn.Module):
        def __init__(self):
            super().__init__()
            self.wi = nn.Linear(4, 16, bias=False)
            self.wo = nn.Linear(16, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.wi(x))
            return self.wo(h)  # born

    block = DenseReluDense()
    nn.init.constant_(block.wi.weight, 8.0)
    nn.init.constant_(block.wo.weight, 40.0)
    block.half()
    h = block(torch.full((2, 4), 5.0).half())
    h.float().mean().backward()


@program("undefined forward log", thread="pytorch#1817", operands="0")
def gumbel_noise_by_hand():
    """A uniform number that was rounded to 1 makes −log(−log(1)) infinite, and softmax inf − inf."""
    logits = torch.tensor([[0.2, -0.1, 0.4]], requires_grad=True)
    uniform = torch.tensor([[0.3, 1.0, 0.8]])
    exponential = -torch.log(uniform)
    gumbel = -torch.log(exponential)  # born
    sample = F.softmax((logits + gumbel) / 0.5, dim=-1)
    sample[0, 0].backward()


@program("undefined backward sqrt", thread="pytorch#2534")
def gradient_penalty_of_a_flat_critic():
    """A critic whose last layer begins at 0 is flat: its gradient is 0, and the norm by hand of 0 has no slope."""
    critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    nn.init.zeros_(critic[2].weight)
    mixed = torch.randn(4, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    norm = slope.square().sum(1).sqrt()  # born
    penalty = (norm - 1).square().mean()
    penalty.backward()


@program("overflow forward add", thread="Automodel#2658")
def two_masks_added():
    """The least number of bfloat16 twice: causal mask plus padding mask is −inf, and one row has nothing else."""
    least = torch.finfo(torch.bfloat16).min
    causal = torch.full((3, 3), least).triu(1).bfloat16()
    padding = torch.tensor([[least, least, 0.0]]).bfloat16().expand(3, 3)
    q = torch.randn(3, 4).bfloat16().requires_grad_()
    bias = causal + padding + torch.tensor([[least], [0.0], [0.0]]).bfloat16()  # born
    weights = (q @ q.T + bias).softmax(-1)
    (weights @ q).float().sum().backward()


@program("undefined forward div", thread="pytorch-metric-learning#107", operands="0")
def triplets_that_are_all_easy():
    """No triplet violates the margin: the mean of the nonzero losses is 0 / 0."""
    embed = nn.Linear(4, 2)
    anchor, positive, negative = embed(torch.eye(4)), embed(torch.eye(4) * 0.9), embed(-9 * torch.eye(4))
    gap = (anchor - positive).norm(dim=1) - (anchor - negative).norm(dim=1)
    violation = F.relu(gap + 0.1)
    loss = violation.sum() / (violation > 0).sum()  # born
    loss.backward()


@program("overflow forward triplet_margin_loss", thread="pytorch#184036")
def triplet_loss_with_a_large_p():
    """A p-norm with p = 100 raises 3 to the power 100 on its way: inf − inf, inside of one function."""
    anchor, positive, negative = torch.randn(3, 4, 8).mul(3).unbind()
    anchor.requires_grad_()
    loss = F.triplet_margin_loss(anchor, positive, negative, p=100)  # born
    loss.backward()


@program("bad input forward mul", thread="pytorch#21212", operands="inf")
def gaussian_kernel_of_infinity():
    """Rows are filled up with infinity to weigh 0: exp(−inf) is 0 indeed, and its slope 0 · inf."""
    width = torch.tensor(0.5, requires_grad=True)
    distance = torch.tensor([0.2, 1.0, inf])
    scaled = distance * width  # born
    kernel = torch.exp(-(scaled**2))
    kernel.sum().backward()


@program("overflow forward exp", thread="miles#1363", entries=[(1,)])
def advantage_of_zero():
    """The ratio of an importance sample overflows and meets an advantage that is 0: a number, and 0 · inf is NaN."""
    log_p = torch.tensor([-0.5, -0.2, -0.1], requires_grad=True)
    old = torch.tensor([-0.4, -95.3, -0.2])
    advantage = torch.tensor([1.0, 0.0, -0.5])
    ratio = (log_p - old).exp()  # born
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    (-surrogate.mean()).backward()


@program("undefined forward _foreach_addcdiv", thread="optax#1754")
def adam_in_half_precision():
    """1e-8 is 0 in float16: where a gradient is 0 Adam divides 0 by √0 + 0, and the next loss is NaN."""
    embedding = nn.Embedding(4, 3).half()
    optimizer = torch.optim.Adam(embedding.parameters(), lr=1e-2, eps=1e-8, foreach=True)
    for tokens in ([0, 1], [1, 3]):
        loss = embedding(torch.tensor(tokens)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # born


@program("undefined backward sqrt", thread="pytorch_geometric#2559", module="norm")
def instance_norm_of_a_constant_graph():
    """eps is added after the root, and sqrt'(0) is taken before."""

    class InstanceNorm(nn.Module):
        def __init__(self, eps: float = 1e-5):
            super().__init__()
            self.eps = eps

        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(dim=0, keepdim=True)
            variance = (x * x).mean(dim=0)
            return x / (variance.sqrt() + self.eps)  # born

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm, self.out = nn.Linear(3, 4), InstanceNorm(), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(self.lin(x)))

    Net()(torch.ones(5, 3)).sum().backward()


@program("overflow forward normalize", thread="pytorch#32137")
def normalize_in_half_precision():
    """normalize's eps of 1e-12 is 0 in float16: a vector of zeros is divided by 0."""
    x = torch.tensor([[0.0, 0.0], [0.6, 0.8]]).half().requires_grad_()
    unit = F.normalize(x, dim=1)  # born
    unit.float().sum().backward()


@program("contaminated forward mse_loss", thread="pytorch#121416", operands="nan")
def loss_of_each_entry_masked():
    """MSELoss without a reduction, and the entries without a target indexed away."""
    x = torch.zeros(3, requires_grad=True)
    target = torch.tensor([0.5, nan, -0.2])
    losses = nn.MSELoss(reduction="none")(x, target)  # born
    losses[~target.isnan()].sum().backward()


@program("contaminated forward exp", thread="pytorch#17455", entries=[(1,)])
def result_assigned_over():
    """A softplus by hand overflows in an entry that is assigned over."""
    x = torch.tensor([0.0, 100.0], requires_grad=True)
    power = torch.exp(x)  # born
    f = torch.log(power + 1)
    f[1] = 0.0
    f.sum().backward()


@program("contaminated forward linear", thread="pytorch#23156")
def losses_filled_over():
    """One row of the data is NaN, and its loss is filled over."""
    x = torch.tensor([[1.0] * 4, [1.0] * 4, [nan] * 4])
    linear = nn.Linear(4, 2)
    losses = linear(x)  # born
    losses.masked_fill(losses.isnan(), 0.0).sum().backward()
