"""Models that were written after the tool was: what it says of them was decided before it was asked."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .program import program

inf, nan = float("inf"), float("nan")


@program("undefined backward sqrt", entries=[(0, 0)])
def physics_at_the_boundary():
    """The ansatz √x · net(x) has no derivative at the boundary, and the residual asks for it."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.linspace(0, 1, 5)[:, None].requires_grad_()
    u = x.sqrt() * net(x)  # born
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (slope + u).square().mean().backward()


@program()
def packed_data():
    """The same padding, packed before anything is computed with it."""
    rnn = nn.GRU(2, 3, batch_first=True)
    rows = torch.tensor([[[0.1, 0.2], [0.4, -0.3], [0.5, 0.1]], [[0.3, 0.2], [nan, nan], [nan, nan]]])
    output, _ = rnn(pack_padded_sequence(rows, torch.tensor([3, 1]), batch_first=True))
    padded, _ = pad_packed_sequence(output, batch_first=True)
    padded.square().mean().backward()


@program()
def attention_over_edges():
    """The softmax by node starts from a maximum of −inf, which stays at the isolated node alone and is never read."""
    h = nn.Linear(3, 2)(torch.randn(4, 3))
    source, target = torch.tensor([[0, 1, 2, 0], [1, 2, 1, 2]])
    score = (h[source] * h[target]).sum(1)
    highest = torch.full((4,), -inf).scatter_reduce(0, target, score.detach(), "amax")
    weight = (score - highest[target]).exp()
    total = torch.zeros(4).scatter_add(0, target, weight)
    out = torch.zeros(4, 2).index_add(0, target, (weight / total[target])[:, None] * h[source])
    out.square().mean().backward()


@program("undefined forward div", operands="0")
def distribution_of_no_weights():
    """A router's weights are all 0, by relu, and torch.distributions divides them by their sum."""
    weights = (nn.Linear(2, 3)(torch.randn(4, 2)) - 9).relu()
    router = torch.distributions.Categorical(probs=weights, validate_args=False)  # born
    (-router.log_prob(torch.tensor([0, 1, 2, 0])).sum()).backward()


@program()
def gradient_clipped_by_a_norm_of_zero():
    """max / 0 is infinite, and the minimum with 1 is 1."""
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        weight.square().sum().backward()
        with torch.no_grad():
            factor = torch.clamp(1.0 / weight.grad.norm(), max=1.0)
            weight.grad.mul_(factor)
        optimizer.step()


@program("undefined forward div", operands="0")
def adam_by_hand_without_epsilon():
    """A feature that is never active has a gradient of 0: 0 / √0, and from the second step on all is NaN."""
    weight = torch.randn(3, requires_grad=True)
    x = torch.randn(8, 3) * torch.tensor([1.0, 1.0, 0.0])
    first, second = torch.zeros(3), torch.zeros(3)
    for _ in range(4):
        loss = (x @ weight - 1).square().mean()
        weight.grad = None
        loss.backward()
        with torch.no_grad():
            first = 0.9 * first + 0.1 * weight.grad
            second = 0.99 * second + 0.01 * weight.grad.square()
            weight -= 0.1 * first / second.sqrt()  # born


@program()
def normalised_adjacency():
    """The isolated node's degree ** −0.5 is infinite, and no edge reads it."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    degree = torch.zeros(4).index_add(0, edges[0], torch.ones(4))
    scale = degree.pow(-0.5)
    adjacency = torch.zeros(4, 4).index_put(tuple(edges), scale[edges[0]] * scale[edges[1]])
    h = nn.Linear(3, 2)(torch.randn(4, 3))
    (adjacency @ h).square().mean().backward()


@program()
def table_whose_gaps_are_skipped():
    """Results are written into a table of NaN, and the mean is of what is there."""
    errors = nn.Linear(2, 1)(torch.randn(3, 2))[:, 0].square()
    table = torch.full((4,), nan).index_put((torch.tensor([0, 1, 3]),), errors)
    table.nanmean().backward()


@program("undefined forward mul", entries=[(0, 2), (1, 0)])
def entropy_of_a_policy_with_illegal_actions():
    """An illegal action has the probability 0 and the log-probability −inf: 0 · inf."""
    legal = torch.tensor([[True, True, False], [False, True, True]])
    logits = nn.Linear(4, 3)(torch.randn(2, 4)).masked_fill(~legal, -inf)
    log_p = logits.log_softmax(1)
    entropy = -(logits.softmax(1) * log_p).sum(1)  # born
    (-0.01 * entropy.mean()).backward()


@program()
def half_precision_mask_of_a_billion():
    """−1e9 · 1 is −inf in float16, and the softmax takes it as it was meant."""
    x = nn.Linear(4, 4)(torch.randn(3, 4)).half()
    padding = torch.tensor([0.0, 0.0, 1.0]).half()
    weights = (x @ x.T + padding * -1e9).softmax(-1)
    (weights @ x).float().square().mean().backward()


@program("contaminated forward log", "undefined backward sqrt")
def reconstruction_and_regulariser():
    """Two mistakes in one loss: a log of zero counts that is masked, and a norm by hand of zero weights."""
    rate = nn.Linear(3, 3)(torch.eye(3)).abs() * torch.tensor([1.0, 0.0, 1.0])
    offset = nn.Parameter(torch.zeros(3))
    log_rate = torch.log(rate)  # born 1
    fit = torch.where(rate > 0, rate - log_rate, rate).sum()
    size = offset.square().sum().sqrt()  # born 2
    (fit + 0.1 * size).backward()
