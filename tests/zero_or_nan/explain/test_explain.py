"""A report has each origin of a program, in the order of time, and no other: its kind, phase, operator and line.

The programs reach what no program of `first_look.md` reaches, which `tests/tools/measure/test_corpora.py` compares with
their record.
"""

import inspect
import re
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from equations import are_true, is_true
from origins import report_of
from tensors import leaf
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

PROGRAMS = []


def program(*origins, says="", wrong=""):
    """Put a function among the programs.

    Args:
        origins: kind, phase and operator of each. Its line ends with `# born`; of several, with `# born 1`, `# born 2`.
        says: a pattern for the text of the report, which never speaks of divergence here.
        wrong: why `explain` is wrong on this program. The page on `explain` states each of these limits.
    """
    marks = [pytest.mark.xfail(strict=True, reason=wrong)] if wrong else []

    def register(function):
        source, first = inspect.getsourcelines(function)
        born = [(text.partition("# born")[2], line) for line, text in enumerate(source, first) if "# born" in text]
        lines = [line for _, line in sorted(born)]
        PROGRAMS.append(pytest.param(function, origins, lines, says, id=function.__name__, marks=marks))
        return function

    return register


def at(origin, loss_of):
    """Put the sum of what a lambda of one line returns among the programs. Without an origin, it is a healthy one."""
    line = loss_of.__code__.co_firstlineno
    origins, lines = ([origin], [line]) if origin else ([], [])
    name = f"{origin or 'healthy'}, line {line}"
    PROGRAMS.append(pytest.param(lambda: loss_of().sum().backward(), origins, lines, "", id=name))


# fmt: off
# The loss uses a value or a slope that does not exist.
at("undefined backward pow", lambda: leaf(0.2, 0.0, 0.4) ** 0.45)
at("undefined forward pow", lambda: leaf(0.5, 0.0, 2.0) ** -1.0)
at("undefined forward pow", lambda: leaf(-8.0, 27.0) ** (1 / 3))
at("undefined backward hypot", lambda: torch.hypot(*leaf([3.0, 0.0], [4.0, 0.0])))
at("undefined backward asin", lambda: leaf([0.1, -0.3], [0.5, 1.0]).asin())
at("undefined forward div", lambda: 3 / (1 / leaf(3.0, 0.0, 6.0)).sum())
at("undefined forward mean", lambda: (x := leaf(0.1, 0.4))[x > 0.5].mean())
at("undefined forward log", lambda: leaf(2.0, 0.0, 3.0).log().sum().exp())
at("undefined backward xlogy", lambda: torch.xlogy(p := leaf(0.0, 0.25, 0.75), p))
at("undefined backward special_entr", lambda: torch.special.entr(leaf(0.0, 0.4)))
at("undefined forward lgamma", lambda: leaf(1.5, 0.0).lgamma())
at("undefined forward logdet", lambda: leaf([1.0, 1.0], [1.0, 1.0]).logdet())
at("undefined backward linalg_eigh", lambda: torch.linalg.eigh(x := leaf([1.0, 0.0], [0.0, 1.0]))[1] @ x)
at("undefined forward softmax", lambda: (x := leaf(1.0, 2.0)).masked_fill(x > 0, -inf).softmax(0))
at("undefined forward logsumexp", lambda: (x := leaf(1.0, 2.0)).masked_fill(x > 0, -inf).logsumexp(0))
at("undefined forward div", lambda: (torch.fft.fft(x := leaf(1.0, -1.0)) / torch.fft.fft(x)[0]).abs())
at("undefined forward matmul", lambda: torch.ones(2, 2).masked_fill(torch.eye(2) < 1, inf) @ leaf([1.0, 0], [0, 1]))
at("undefined forward cross_entropy", lambda: F.cross_entropy(leaf([1.0, 2.0]), torch.tensor([0]), torch.zeros(2)))
at("undefined forward layer_norm", lambda: F.layer_norm(leaf([1.0, 2.0], [1.0, 1.0]), (2,), eps=0.0))
at("undefined forward mul", lambda: (z := (x := leaf(1.0, 2.0)).masked_fill(x > 1, -inf)).softmax(0) * z.log_softmax(0))
# The loss ignores it.
at("contaminated backward pow", lambda: torch.where((x := leaf(0.2, 0.0)) <= 0.003, 12.92 * x, x**0.4))
at("contaminated backward xlogy", lambda: (p := leaf(0.5, 0.0)).xlogy(p).masked_fill(p == 0, 0.0))
at("contaminated backward sqrt", lambda: (leaf(4.0, 0.0, 9.0).sqrt() - 1.0).relu())
at("contaminated forward div", lambda: torch.where((x := leaf(1.0)) >= 0, x, 0 * (x / 0)))
at("contaminated forward cos", lambda: torch.where((x := leaf(0.0, inf)) < 1.0, x.cos(), 0.0))
at("contaminated forward sqrt", lambda: torch.where((x := leaf(-1.0, -4.0)) > 0, x.sqrt(), x))
at("contaminated forward softmax", lambda: ((x := leaf([1.0], [-1.0])).masked_fill(x < 0, -inf).softmax(1) * x)[:1])
at("contaminated forward exp", lambda: leaf(0.5, 95.0).exp().clamp(max=1000.0))
at("contaminated forward sub", lambda: ((leaf(0.3, 0.2) - torch.tensor([0.1, nan])) ** 2).nanmean())
at("contaminated forward mul", lambda: (leaf(0.3, -0.7) * torch.tensor([nan, 2.0])).nan_to_num(0.0))
at("contaminated forward exp", lambda: torch.minimum((r := leaf(-0.1, 119.0).exp()) * 0.7, r.clamp(0.8, 1.2) * 0.7))
at("contaminated backward linalg_eigh", lambda: torch.linalg.eigh(leaf([[1.0, 0], [0, 1]], [[2, 1], [1, 3]]))[1][1])
at("contaminated forward mse_loss", lambda: F.mse_loss(leaf(0.5, 1.0), torch.tensor([nan, 1.0]), reduction="none")[1:])
# A number is too large, or is lost by rounding.
at("overflow forward exp", lambda: 1 / (1 + torch.exp(-leaf(-100.0, 0.0))))
at("overflow forward div", lambda: 1.0 / leaf(0.1, 1e-40))
at("overflow forward square", lambda: leaf(3e20, 4e20).square().sum().sqrt().log())
at("overflow forward pow", lambda: leaf(1.0, 5000.0) ** 12)
at("overflow forward sqrt", lambda: (((x := leaf(*[100.1] * 6)) ** 2).mean() - x.mean() ** 2).sqrt())
at("overflow forward poisson_nll_loss", lambda: F.poisson_nll_loss(leaf(100.0), torch.zeros(1)))
at("overflow forward triplet_margin_loss", lambda: F.triplet_margin_loss(*leaf([[9.0, 1]], [[1, 5]], [[2, 7]]), p=100))
at("overflow forward einsum", lambda: torch.einsum("ad,bd", q := leaf(*[[90.0] * 9] * 9, dtype=torch.half), q))
at("overflow forward normalize", lambda: F.normalize(leaf([0.0, 0.0], [0.6, 0.8], dtype=torch.half), dim=1).float())
at("overflow forward exp", lambda: ((r := leaf(-0.1, 95.0).exp()) * torch.tensor([1.0, 0.0])).minimum(r * 2))
at("overflow backward div", lambda: (leaf(1e-12, 2e-13) / 1e-30) ** 2)
at("overflow backward div", lambda: 1 / leaf(0.5, 1e-25))
at("overflow backward exp", lambda: leaf(1.0, 44.2).exp() ** 2)
at("overflow backward log", lambda: -leaf(0.3, 0.7, 1e-40).log())
at("overflow backward mul", lambda: leaf(1e-30) * 1e10 * 1e10 * 1e10 * 1e10)
at("overflow backward float", lambda: leaf(1.0, 1.0, dtype=torch.half).float() * torch.tensor([7e4, 1]))
# Data are not finite.
at("bad input forward logit", lambda: torch.tensor([nan, 0.3]).logit() * leaf(1.0, 1.0))
at("bad input forward mul", lambda: torch.exp(-((torch.tensor([0.2, inf]) * leaf(0.5)) ** 2)))
at("bad input forward mul", lambda: (torch.tensor([0.4, nan]) * torch.tensor([1.0, 0.0])) @ leaf(1.0, 1.0))
at("bad input forward embedding", lambda: F.embedding(torch.tensor([0, 1]), leaf([0.1, 0.2], [nan, nan])).mean(0))
# Nothing is wrong.
at("", lambda: torch.linalg.vector_norm(leaf(0.0, 0.0)))
at("", lambda: 0.0 ** leaf(1.0))
at("", lambda: (x := leaf(-200.0, 0.0, 200.0)).tanh() + x.sigmoid() + F.softplus(x) + F.elu(x))
at("", lambda: leaf(-1.0, 4.0).relu().sqrt())
at("", lambda: torch.where((x := leaf(0.0, 1.0)) == 0, 1.0, x.sin() / torch.where(x == 0, 1.0, x)))
at("", lambda: leaf(1.0, 1.0) * torch.where((d := torch.tensor([0.0, 2.0])) > 0, d.log(), 0.0))
at("", lambda: torch.where((x := leaf(-1.0, 2.0)) > 0, x.relu().log(), 0.0))
at("", lambda: (leaf(0.0, 0.0) + torch.tensor([0.0, 2.0]).log())[1:].square())
at("", lambda: torch.clamp(1.0 / (leaf(0.0) * torch.ones(1)).detach().norm(), max=1.0) * leaf(1.0))
at("", lambda: nn.Softmax(0)((x := leaf(1.0, 2.0, 3.0)).masked_fill(x > 2, -inf)) * x.detach())
at("", lambda: torch.full((3,), -inf).scatter(0, torch.tensor([0, 1]), leaf(1.0, 2.0)).log_softmax(0)[:2])
at("", lambda: torch.cdist(x := leaf([0.0], [1.0], [3.0]), x).masked_fill(torch.eye(3) > 0, inf).amin(1))
at("", lambda: torch.full((3,), nan).index_put((torch.tensor([0, 2]),), leaf(1.0, 2.0)).nanmean())
at("", lambda: F.layer_norm(torch.tensor([[0.1, 0.5], [nan, nan]]), (2,))[0] * leaf(1.0, 2.0))
at("", lambda: (leaf(0.5, 0.2) * torch.tensor([0.0, inf]).tanh()))
# fmt: on


# What autograd is asked to do.


@program("undefined backward Root")
def function_whose_backward_divides_by_zero():
    class Root(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(y := x.sqrt()), y)[1])
        backward = staticmethod(lambda ctx, g: g / (2 * ctx.saved_tensors[0]))

    Root.apply(leaf(4.0, 0.0, 1.0)).mean().backward()  # born


@program("undefined forward log")
def weight_of_zero_in_the_gradient_argument():
    y = torch.log(leaf(1.0, 0.0, 2.0))  # born
    y.backward(gradient=torch.tensor([1.0, 0.0, 1.0]))


@program("contaminated backward sqrt")
def root_in_place_then_overwritten():
    y = leaf([1.0, 0.0], [4.0, 9.0]) * 1
    y.sqrt_()  # born
    y = y.clone()
    y[0, 1] = 0.0
    y.sum().backward()


@program("undefined forward log")
def log_through_a_view():
    table = leaf([0.0, 0.4], [0.3, 0.3]) * 1
    table[0].log_()  # born
    table.sum().backward()


@program("contaminated forward exp")
def reentrant_checkpoint_whose_backward_is_a_pass_within_the_pass():
    def block(x):
        power = x.exp()  # born
        return torch.where(x < 5, power, x)

    checkpoint(block, leaf(100.0, 1.0), use_reentrant=True).mean().backward()


@program()
def hook_that_fixes():
    inner = leaf(1.0, 0.0) * 2
    inner.register_hook(lambda g: g.nan_to_num(0.0, posinf=0.0))
    inner.sqrt().sum().backward()


@program("overflow forward div", says="is 0|0 / 0")
def weights_without_a_gradient():
    with torch.no_grad():
        weight = torch.exp(torch.tensor([-200.0, -300.0]))
        weight = weight / weight.sum()  # born
    (weight * leaf(1.0, 2.0)).sum().backward()


@program("undefined forward div")
def result_written_into_a_buffer():
    rate = torch.empty(2)
    torch.div(torch.tensor([3.0, 0.0]), torch.tensor([4.0, 0.0]), out=rate)  # born
    (leaf(1.0, 2.0) * rate).sum().backward()


@program("overflow forward log")
def forward_alone():
    p = (leaf(1.0, 2.0) * 300).softmax(0)
    surprise = p.log()  # born
    return (p * surprise).sum()


@program("contaminated forward log")
def two_passes_over_one_graph():
    x = leaf(2.0, 0.0, 3.0)
    kept = x.log()[x > 0]  # born
    torch.autograd.grad(kept.sum(), x, retain_graph=True)
    torch.autograd.grad(kept.prod(), x)


@program("undefined backward pow")
def second_derivative_at_a_kink():
    x = leaf(1.0, 0.0)
    energy = (x.abs() ** 1.5).sum()  # born
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    force.sum().backward()


@program("undefined backward sqrt", says="of 5120|17, 42")
def one_pair_of_thousands():
    queries, prototypes = torch.randn(64, 16), torch.randn(80, 16)
    prototypes[42] = queries[17]
    squared = (queries.requires_grad_()[:, None, :] - prototypes[None, :, :]).pow(2).sum(-1)
    distance = squared.sqrt()  # born
    F.cross_entropy(-distance, torch.arange(64)).backward()


# Layers.


@program("contaminated forward lstm", says="module lstm|in lstm")
def padded_steps_of_an_lstm():
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 3, batch_first=True)})
    x = torch.tensor([torch.randn(4, 2).tolist(), torch.randn(2, 2).tolist() + [[nan, nan]] * 2])
    states, _ = model["lstm"](x)  # born
    states[torch.arange(2), torch.tensor([3, 1])].square().mean().backward()


@program("contaminated forward linear")
def embedded_padding_that_is_packed_away():
    embed, gru = nn.Linear(2, 4), nn.GRU(4, 3, batch_first=True)
    rows = torch.tensor([torch.randn(n, 2).tolist() + [[nan, nan]] * (4 - n) for n in (3, 4, 1)])
    embedded = embed(rows)  # born
    packed = pack_padded_sequence(embedded, torch.tensor([3, 4, 1]), batch_first=True, enforce_sorted=False)
    gru(packed)[1].square().mean().backward()


@program("contaminated forward conv1d")
def border_that_is_cropped():
    conv = nn.Conv1d(1, 2, 3, padding=1)
    y = conv(torch.tensor([[[nan, nan, nan, *torch.randn(9).tolist()]]]))  # born
    y[..., 4:].square().mean().backward()


@program("contaminated forward scaled_dot_product_attention")
def query_of_nan_in_fused_attention():
    words = torch.tensor([torch.randn(5, 8).tolist() + [[nan] * 8]])
    keys, values = torch.randn(2, 1, 5, 8).requires_grad_()
    out = F.scaled_dot_product_attention(words, keys, values)  # born
    out[:, :5].square().mean().backward()


@program("bad input forward multi_head_attention_forward")
def bad_data_beside_a_padding_mask():
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.tensor([[[nan, 1.0, 0.5, 2.0], [0.3, 0.1, 0.9, 0.4], [0.0, 0.0, 0.0, 0.0]]])
    padding = torch.tensor([[False, False, True]])
    attention(x, x, x, key_padding_mask=padding)[0].square().mean().backward()  # born


@program("overflow forward linear", says="module 2|in 2")
def autocast_overflows():
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
    nn.init.constant_(model[2].weight, 100.0)
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = model(torch.full((2, 3), 500.0))  # born
    F.l1_loss(prediction.float(), torch.zeros(2, 1)).backward()


@program("undefined forward div")
def distribution_of_no_weights():
    router = torch.distributions.Categorical(probs=(leaf([1.0, 2.0]) - 9).relu(), validate_args=False)  # born
    (-router.log_prob(torch.tensor([0])).sum()).backward()


@program()
def forward_algorithm_of_a_chain():
    alpha, log_a = torch.tensor([0.0, -inf, -inf]), torch.randn(3, 3, requires_grad=True).log_softmax(1)
    for _ in range(4):
        alpha = (alpha[:, None] + log_a).logsumexp(0)
    (-alpha.logsumexp(0) - alpha[1]).backward()


# What is harmless stands beside what is not, or spreads to later steps.


@program("undefined backward sqrt")
def metric_that_is_nan_before():
    logits = nn.Linear(3, 3, bias=False)(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
    with torch.no_grad():
        log = {"accuracy": (torch.ones(2, 3).T @ torch.ones(2) / torch.tensor([1.0, 1.0, 0.0])).tolist()}
    length = logits.square().sum(1).sqrt()  # born
    assert len(log["accuracy"]) == 3
    length.mean().backward()


@program("undefined forward div", "contaminated forward log")
def two_steps_two_mistakes():
    first, second = nn.Linear(2, 1), nn.Linear(2, 2)
    for step in range(5):
        x, weight = torch.randn(3, 2), torch.full((3, 1), float(step != 1))
        mean = (first(x) * weight).sum() / weight.sum()  # born 1
        mean.backward()
        rate = second(x).abs() * float(step != 3)
        surprise = rate.log()  # born 2
        surprise[rate > 0].sum().backward()


@program("overflow forward log", "overflow backward sqrt")
def two_heads_two_mistakes():
    classify, locate = nn.Linear(4, 3), nn.Linear(4, 2)
    h = torch.randn(5, 4).relu()
    p = (classify(h) * torch.tensor([1.0, 1.0, 1000.0])).softmax(1)
    surprise = -p.log().mean()  # born 1
    gap = (where := locate(h)) - where.detach()
    distance = gap.square().sum(1).sqrt().mean()  # born 2
    (surprise + distance).backward()


@program("bad input forward mul")
def average_that_was_nan():
    weight, average = leaf(1.0, 1.0, 1.0), torch.tensor([1.0, nan, 1.0])
    with torch.no_grad():
        average.mul_(0.9).add_(weight, alpha=0.1)  # born
    (weight * average).sum().backward()


# Training runs.


@program("overflow backward mul")
def infinite_gradient_that_is_clipped():
    weight = nn.Parameter(torch.full((3,), 1e-38))
    for _ in range(2):
        h = weight * 1e20  # born
        weight.grad = None
        (h * 1e20 - 1).square().mean().backward()
        nn.utils.clip_grad_norm_([weight], 1.0)
        weight.data -= 0.1 * weight.grad


@program("undefined forward div", says="optimizer")
def update_of_an_own_optimizer():
    class Muon(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                new = parameter.grad / parameter.grad.square().mean(-1, keepdim=True).add(1e-8).sqrt()
                ratio = parameter.grad.norm() / new.norm()  # born
                parameter.sub_(new * ratio, alpha=0.1)

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = Muon(model.parameters(), {})
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(5, 3)) - 1).square().mean().backward()
        optimizer.step()


@program("overflow forward conv1d", wrong="an infinity that relu made 0 is reported beside others")
def message_passing_that_begins_too_large():
    message = nn.Conv1d(4, 4, 3, padding=1, bias=False)
    nn.init.normal_(message.weight, std=1.0)
    slices = list(torch.randn(90, 1, 4, 12))
    for number in range(1, len(slices)):
        slices[number] = slices[number] + F.relu(message(slices[number - 1]))  # born
    torch.cat(slices).mean().backward()


@program("overflow forward exp", wrong="a sum that would overflow as well is reported as another origin")
def contrastive_loss_with_a_low_temperature():
    z = F.normalize(nn.Linear(5, 3)(torch.randn(6, 5)), dim=1).repeat(2, 1)
    power = torch.exp(z @ z.T / 0.01)  # born
    (-torch.log(power.diagonal(6) / power[:6].sum(1))).mean().backward()


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(("run", "origins", "lines", "says"), PROGRAMS)
def test_all_origins_and_no_other(run, origins, lines, says):
    torch.manual_seed(0)
    report = report_of(run)
    told = [(f"{origin.kind} {origin.phase} {origin.operator}", origin.line) for origin in report]
    assert told == list(zip(origins, lines, strict=True)) and report.ok is not bool(origins)
    assert re.search(says, str(report)) and "diverg" not in str(report), report
    for origin in report:
        assert origin.filename == __file__
        assert origin.source and origin.reached and origin.remedy and origin.chapter and origin.count
        assert origin.kind != "contaminated" or origin.fixed is not None


def test_equations_are_evaluated():
    told = ["0 / 0 = nan", "exp(100) > 3.4e38", "0 × inf", "1 / 2 = 2", "exp(1) > 3.4e38", "linear of 4×3 elements"]
    told += ["acos(1)", "acos(1.0000001)", "2 × 3 = nan, one of 2 products that are added", "inf − inf = nan, in a sum"]
    assert list(map(is_true, told)) == [True, True, True, False, False, None, False, True, False, True]
    assert not are_true("0 / 0; in backward 2 / 1 = inf") and are_true("0 / 0; in backward 0 × inf")
