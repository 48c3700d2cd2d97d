"""Programs with a NaN that is born, and others beside it that do no harm: those lines end with `# harmless`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import program

inf, nan = float("inf"), float("nan")


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
