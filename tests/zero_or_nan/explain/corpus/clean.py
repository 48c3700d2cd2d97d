"""Programs in which nothing non-finite reaches the loss or a gradient, though much that looks like it goes on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .program import program

inf, nan = float("inf"), float("nan")


@program(thread="pytorch#103749")
def padded_row_in_fused_attention():
    """scaled_dot_product_attention gives 0 for a row that is masked throughout, since 2.5."""
    layer = nn.Linear(4, 12)
    q, k, v = layer(torch.randn(1, 3, 4)).chunk(3, dim=-1)
    allowed = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    F.scaled_dot_product_attention(q, k, v, attn_mask=allowed).square().mean().backward()


@program(thread="pytorch#24816")
def padded_sentence_in_an_encoder():
    """TransformerEncoderLayer no longer makes NaN of a sentence that is all padding."""
    layer = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
    padding = torch.tensor([[False, False], [True, True]])
    layer(torch.randn(2, 2, 4), src_key_padding_mask=padding).square().mean().backward()


@program()
def causal_mask():
    """A mask of −inf under softmax: 0 in forward, 0 in backward."""
    embed = nn.Linear(4, 4)
    x = embed(torch.randn(5, 4))
    scores = x @ x.T + torch.full((5, 5), -inf).triu(1)
    (scores.softmax(-1) @ x).square().mean().backward()


@program()
def logits_filtered_by_top_k():
    """All logits but two become −inf, and a log-probability of one of the two is taken."""
    logits = nn.Linear(3, 6)(torch.randn(2, 3))
    kept = logits.topk(2).indices
    filtered = torch.full_like(logits, -inf).scatter(1, kept, logits.gather(1, kept))
    log_p = filtered.log_softmax(-1)
    (-log_p.gather(1, kept[:, :1]).mean()).backward()


@program()
def nearest_neighbour_of_another_class():
    """Distances within a class are infinite on purpose, and the minimum drops them."""
    z = nn.Linear(3, 2)(torch.randn(6, 3))
    label = torch.tensor([0, 0, 1, 1, 2, 2])
    distance = torch.cdist(z, z).masked_fill(label[:, None] == label, inf)
    nearest = distance.amin(1)
    F.relu(1 - nearest).mean().backward()


@program()
def overflow_that_is_detached():
    """exp overflows in a value that is logged, and not differentiated."""
    loss = nn.Linear(3, 1)(torch.ones(2, 3)).square().mean()
    perplexity = (loss.detach() + 2000).exp()
    assert perplexity.isinf()
    loss.backward()


@program()
def data_cleaned_by_nan_to_num():
    """nan_to_num of the data itself: the layer never meets a NaN."""
    model = nn.Linear(3, 1)
    batch = torch.tensor([[0.1, nan, 0.3], [inf, 0.2, 0.1]])
    model(batch.nan_to_num(0.0, posinf=1.0)).square().mean().backward()


@program()
def hook_that_fixes():
    """√0 makes an infinite gradient of an inner tensor, and its hook puts 0 in the place of it."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    inner = x * 2
    inner.register_hook(lambda g: g.nan_to_num(0.0, posinf=0.0))
    inner.sqrt().sum().backward()


@program()
def some_targets_ignored():
    """cross_entropy with targets of −100, and at least one that counts."""
    logits = nn.Linear(3, 4)(torch.randn(4, 3))
    F.cross_entropy(logits, torch.tensor([1, -100, -100, 2])).backward()


@program()
def forward_algorithm_of_a_chain():
    """Log-probabilities begin at −inf but for one state, and every state is reached."""
    transition = nn.Parameter(torch.randn(3, 3))
    alpha = torch.tensor([0.0, -inf, -inf])
    log_a = transition.log_softmax(1)
    for _ in range(4):
        alpha = (alpha[:, None] + log_a).logsumexp(0)
    (-alpha.logsumexp(0) - alpha[1]).backward()


@program()
def checkpointed_block_with_a_mask():
    """A checkpointed attention by hand, with a mask of −inf."""
    layer = nn.Linear(4, 4)

    def attend(x: Tensor) -> Tensor:
        h = layer(x)
        scores = (h @ h.T).masked_fill(torch.ones(4, 4).triu(1).bool(), -inf)
        return scores.softmax(-1) @ h

    x = torch.randn(4, 4, requires_grad=True)
    checkpoint(attend, x, use_reentrant=False).square().mean().backward()


@program()
def softmax_layer_on_masked_scores():
    """A softmax that is a module gets the mask's −inf as its input."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.softmax = nn.Linear(4, 4), nn.Linear(4, 4), nn.Softmax(dim=-1)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT
            return self.softmax(scores.masked_fill(padding[:, None], -inf)) @ x

    padding = torch.tensor([[False, False, True], [False, True, True]])
    Attention()(torch.randn(2, 3, 4), padding).square().mean().backward()


@program()
def saturated_by_infinity():
    """tanh of an infinite reading is 1, and nothing before it is learned."""
    net = nn.Sequential(nn.Tanh(), nn.Linear(3, 1))
    net(torch.tensor([[0.2, inf, -0.4], [-inf, 0.1, 0.3]])).square().mean().backward()


@program()
def rows_of_nan_through_a_layer_without_weights():
    """A module normalises rows, some of them NaN, that the loss leaves out; data has no gradient."""
    norm, head = nn.LayerNorm(3, elementwise_affine=False), nn.Linear(3, 1)
    rows = torch.tensor([[0.1, 0.5, 0.2], [nan, nan, nan], [0.3, 0.1, 0.9]])
    normal = norm(rows)
    head(normal[[0, 2]]).square().mean().backward()
