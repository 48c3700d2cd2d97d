"""Mistakes that textbooks warn of: formulas by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program("undefined forward log", operands="0")
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


@program("undefined forward log", entries=[(1,)], operands="0")
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


@program("undefined forward atanh", entries=[(0, 1)], operands="1")
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
