"""Programs in which nothing non-finite reaches the loss or a gradient, though much that looks like it goes on.

In those after the first part one NaN does; the others are on lines that end with `# harmless`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .program import descend, program

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


@program("undefined backward sqrt")
def metric_that_is_nan_before():
    """The accuracy of a class that is absent is 0 / 0 and logged; the gradient's NaN is of a root at 0."""
    model = nn.Linear(3, 3, bias=False)
    x, target = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1])
    logits = model(x)
    with torch.no_grad():
        members = F.one_hot(target, 3).float()
        accuracy = members.T @ (logits.argmax(1) == target).float() / members.sum(0)  # harmless
        log = {"accuracy": accuracy.tolist()}
    length = logits.square().sum(1).sqrt()  # born
    assert len(log["accuracy"]) == 3
    (F.cross_entropy(logits, target) + 0.1 * length.mean()).backward()


@program("bad input forward smooth_l1_loss", operands="nan")
def perplexity_that_overflows_beside_a_bad_target():
    """A detached perplexity overflows for the log; the loss's NaN came with a target."""
    model = nn.Linear(2, 1)
    prediction = model(torch.randn(3, 2))
    perplexity = (prediction.detach() + 2000).exp()  # harmless
    target = torch.tensor([[0.5], [0.1], [nan]])
    loss = F.smooth_l1_loss(prediction, target)  # born
    assert perplexity.shape == (3, 1)
    loss.backward()


@program("contaminated forward exp", entries=[(0, 1)])
def two_branches_one_of_data():
    """log 0 of data is dropped and needs no gradient; exp of what is learned is dropped too, and does."""
    counts = torch.tensor([[0.0, 3.0], [7.0, 0.0]])
    rate = torch.tensor([[1.0, 120.0], [0.5, 2.0]], requires_grad=True)
    feature = torch.where(counts > 0, counts.log(), 0.0)  # harmless
    power = rate.exp()  # born
    capped = torch.where(rate < 50, power, 50.0)
    (feature * capped).sum().backward()


@program("undefined forward log", operands="0")
def shifted_rows_of_nan_beside_log_zero():
    """NaN rows get a bias and are sliced away, which is harmless; a weight that is 0 is not."""
    bias = torch.zeros(2, requires_grad=True)
    weight = torch.tensor([1.0, 0.0], requires_grad=True)
    rows = torch.tensor([[1.0, 2.0], [nan, nan]])
    shifted = rows + bias  # harmless
    penalty = -torch.log(weight).sum()  # born
    (shifted[:1].square().sum() + 0.01 * penalty).backward()


@program("contaminated forward exp")
def contamination_that_spreads_into_training():
    """In the third step exp overflows under `where`; the step makes every weight NaN, and the next loss."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.randn(4, 2)
        x[0] *= 1000.0 if step == 2 else 1.0
        rate = model(x)
        power = rate.abs().exp()  # born
        loss = torch.where(rate.abs() < 20, power, rate.abs()).mean()
        descend(optimizer, loss)


@program("undefined forward div", "contaminated forward log")
def two_steps_two_mistakes():
    """The first model is spoilt by an empty batch in step 1, the second by log 0 under a mask in step 3."""
    first, second = nn.Linear(2, 1), nn.Linear(2, 2)
    for step in range(5):
        x = torch.randn(3, 2)
        weight = torch.full((3, 1), float(step != 1))
        mean = (first(x) * weight).sum() / weight.sum()  # born 1
        mean.backward()
        rate = second(x).abs() * float(step != 3)
        surprise = rate.log()  # born 2
        surprise[rate > 0].sum().backward()


@program("contaminated forward linear", module="teacher.0")
def mask_of_infinity_beside_missing_rows():
    """The attention's −inf is meant; the rows of NaN in a branch that the loss indexes away are not."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Linear(3, 4)
            self.teacher = nn.Sequential(nn.Linear(3, 4), nn.Tanh())

        def forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            h = self.student(x)
            scores = (h @ h.T).masked_fill(torch.ones(4, 4).triu(1).bool(), -inf)
            taught = self.teacher(seen)  # born
            return scores.softmax(-1) @ h, taught

    seen = torch.tensor([*torch.randn(2, 3).tolist(), [nan] * 3, [0.1, nan, 0.2]])
    student, teacher = Pair()(torch.randn(4, 3), seen)
    present = ~seen.isnan().any(1)
    (student[present] - teacher[present]).square().mean().backward()
