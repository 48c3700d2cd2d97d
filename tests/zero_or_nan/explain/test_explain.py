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

from zero_or_nan.explain.births.arithmetic import SAID

PROGRAMS = []
MASK = torch.tensor([True, False])


def program(*origins, says=""):
    """Put a function among the programs.

    Args:
        origins: kind, phase and operator of each. Its line ends with `# born`; of several, with `# born 1`, `# born 2`.
        says: a pattern for the text of the report, which never speaks of divergence here.
    """

    def register(function):
        source, first = inspect.getsourcelines(function)
        born = [(text.partition("# born")[2], line) for line, text in enumerate(source, first) if "# born" in text]
        lines = [line for _, line in sorted(born)]
        PROGRAMS.append(pytest.param(function, origins, lines, says, id=function.__name__))
        return function

    return register


def at(origin, loss_of, operands=""):
    """Put the sum of what a lambda of one line returns among the programs. Without an origin, it is a healthy one."""
    line = loss_of.__code__.co_firstlineno
    origins, lines = ([origin], [line]) if origin else ([], [])
    name = f"{origin or 'healthy'}, line {line}"
    text = operands and f": {re.escape(operands)}$"
    PROGRAMS.append(pytest.param(lambda: loss_of().sum().backward(), origins, lines, text, id=name))


# fmt: off
# The loss uses a value or a slope that does not exist.
at("undefined backward pow", lambda: leaf(0.2, 0.0, 0.4) ** 0.45)
at("undefined forward pow", lambda: leaf(-8.0, 27.0) ** (1 / 3))
at("undefined backward sqrt", lambda: ((y := leaf(0.3, 0.7).sin().exp()) - y.data).square().sum(0).sqrt())
at("undefined backward hypot", lambda: torch.hypot(*leaf([3.0, 0.0], [4.0, 0.0])))
at("undefined backward asin", lambda: leaf([0.1, -0.3], [0.5, 1.0]).asin())
at("undefined forward mean", lambda: (x := leaf(0.1, 0.4))[x > 0.5].mean())
at("undefined backward xlogy", lambda: torch.xlogy(p := leaf(0.0, 0.25, 0.75), p))
at("undefined backward special_entr", lambda: torch.special.entr(leaf(0.0, 0.4)))
at("undefined forward lgamma", lambda: leaf(1.5, 0.0).lgamma())
at("undefined forward logdet", lambda: leaf([1.0, 1.0], [1.0, 1.0]).logdet())
at("undefined backward linalg_eigh", lambda: torch.linalg.eigh(x := leaf([1.0, 0.0], [0.0, 1.0]))[1] @ x)
at("undefined forward softmax", lambda: (x := leaf(1.0, 2.0)).masked_fill(x > 0, -inf).softmax(0))
at("undefined forward logsumexp", lambda: (x := leaf(1.0, 2.0)).masked_fill(x > 0, -inf).logsumexp(0))
at("undefined forward logaddexp", lambda: leaf(1.0, 1.0).masked_fill(MASK, -inf).logaddexp(torch.tensor([-inf, 0.0])))
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
at("bad input forward logit", lambda: torch.tensor([nan, 0.3, 0.4]).logit()[:1] * leaf(1.0, 1.0), "nan")
at("bad input forward atanh", lambda: torch.tensor([nan, nan]).atanh()[:1] * leaf(1.0, 1.0), "nan")
at("bad input forward remainder", lambda: (torch.tensor([nan, 0.3]) % torch.tensor([0.0, 1.0])) * leaf(1.0, 1.0), "nan")
at("bad input forward layer_norm", lambda: F.layer_norm(torch.tensor([nan, 1.0]), (2,), eps=0.0) * leaf(1.0), "nan")
at("bad input forward mul", lambda: torch.exp(-((torch.tensor([0.2, inf]) * leaf(0.5)) ** 2)))
at("bad input forward mul", lambda: (torch.tensor([0.4, nan]) * torch.tensor([1.0, 0.0])) @ leaf(1.0, 1.0))
at("bad input forward embedding", lambda: F.embedding(torch.tensor([0, 1]), leaf([0.1, 0.2], [nan, nan])).mean(0))
# What the number was made of is a formula with its result, then a remark.
at("overflow forward matmul", lambda: leaf([3e38, 1.0]) @ torch.tensor([[2.0], [1.0]]),
   "3e38 × 2 > 3.4e38, one of 2 products that are added")
at("overflow forward matmul", lambda: leaf([300.0, 300.0]).half() @ torch.tensor([[-300.0], [600.0]]).half(),
   "300 × 600 > 65504, one of 2 products that are added")
at("overflow forward addmm", lambda: torch.addmm(torch.tensor([[3e38]]), leaf([1e38]), torch.tensor([[1.0]])),
   "the sum of 1 product and another number > 3.4e38")
at("overflow forward add", lambda: leaf(1.0, 1e10).add(torch.tensor([0.0, 1e20]), alpha=-1e30),
   "1e10 + -1e30 × 1e20 < -3.4e38")
at("overflow forward sub", lambda: torch.rsub(torch.tensor([0.0, 1e20]), leaf(1.0, 1e10), alpha=1e30),
   "1e10 − 1e30 × 1e20 < -3.4e38")
at("overflow forward _foreach_add", lambda: torch._foreach_add([leaf(1e10)], [torch.tensor([1e20])], alpha=1e30)[0],
   "1e10 + 1e30 × 1e20 > 3.4e38")
at("undefined forward acos", lambda: leaf(1.0000001).acos(), "acos(1.0000001)")
at("contaminated forward div", lambda: (leaf(1.0, 2.0) / torch.tensor([0.0, 1.0]))[1:],
   "1 / 0 = inf; in backward 0 / 0")
at("undefined forward mean", lambda: leaf(1.0)[:0].mean(), "0 / 0 = nan, the mean of no elements")
at("overflow forward sum", lambda: leaf(3e38, 3e38).sum(), "the sum of 2 elements of up to 3e38 > 3.4e38")
at("undefined forward softmax", lambda: leaf([-inf, -inf, -inf]).softmax(-1),
   "inf − inf = nan: all 3 elements of the row are -inf")
# Complex and small numbers.
at("overflow forward mul", lambda: ((z := leaf(0j, 1 + 2j, complex(3e38, 1))).abs() + (z * z.conj()).real))
at("contaminated forward log", lambda: torch.where((z := leaf(0j, 1 + 1j)).real > 0, z.log().abs(), z.abs()))
at("overflow forward to", lambda: leaf(1.0, 1e6).to(torch.float8_e5m2).to(torch.float32), "1e6 > 57344")
at("undefined backward sqrt", lambda: leaf(0.0).to(torch.float16).sqrt())
# Nothing is wrong.
at("", lambda: torch.linalg.vector_norm(leaf(0.0, 0.0)))
at("", lambda: 0.0 ** leaf(1.0))
at("", lambda: (x := leaf(-200.0, 0.0, 200.0)).tanh() + x.sigmoid() + F.softplus(x) + F.elu(x))
at("", lambda: leaf(-1.0, 4.0).relu().sqrt())
at("", lambda: torch.where((x := leaf(0.0, 1.0)) == 0, 1.0, x.sin() / torch.where(x == 0, 1.0, x)))
at("", lambda: leaf(1.0, 1.0) * torch.where((d := torch.tensor([0.0, 2.0])) > 0, d.log(), 0.0))
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


@program("undefined backward CompiledByHand", says="0.333333 / 0 = inf")
def function_whose_backward_divides_by_zero():
    class CompiledByHand(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(y := x.sqrt()), y)[1])
        backward = staticmethod(lambda ctx, g: g / (2 * ctx.saved_tensors[0]))  # born

    CompiledByHand.apply(leaf(4.0, 0.0, 1.0)).mean().backward()


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


@program()
def hook_that_fixes():
    inner = leaf(1.0, 0.0) * 2
    inner.register_hook(lambda g: g.nan_to_num(0.0, posinf=0.0))
    inner.sqrt().sum().backward()


@program("undefined forward div")
def result_written_into_a_buffer():
    rate = torch.empty(2)
    torch.div(torch.tensor([3.0, 0.0]), torch.tensor([4.0, 0.0]), out=rate)  # born
    (leaf(1.0, 2.0) * rate).sum().backward()


@program("contaminated forward log")
def two_passes_over_one_graph():
    x = leaf(2.0, 0.0, 3.0)
    kept = x.log()[x > 0]  # born
    torch.autograd.grad(kept.sum(), x, retain_graph=True)
    torch.autograd.grad(kept.prod(), x)


# Layers.


@program("contaminated forward lstm", says="module lstm|in lstm")
def padded_steps_of_an_lstm():
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 3, batch_first=True)})
    x = torch.tensor([torch.randn(4, 2).tolist(), torch.randn(2, 2).tolist() + [[nan, nan]] * 2])
    states, _ = model["lstm"](x)  # born
    states[torch.arange(2), torch.tensor([3, 1])].square().mean().backward()


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


@program("overflow forward log", "undefined backward sqrt")
def two_heads_two_mistakes():
    classify, locate = nn.Linear(4, 3), nn.Linear(4, 2)
    h = torch.randn(5, 4).relu()
    p = (classify(h) * torch.tensor([1.0, 1.0, 1000.0])).softmax(1)
    surprise = -p.log().mean()  # born 1
    gap = (where := locate(h)) - where.detach()
    distance = gap.square().sum(1).sqrt().mean()  # born 2
    (surprise + distance).backward()


@program("undefined backward OfTorch")
def function_of_pytorch():
    class OfTorch(torch.autograd.Function):
        __module__ = "torch.distributions.own"

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad / (grad - grad)

    OfTorch.apply(leaf(1.0)).sum().backward()  # born


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


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(("run", "origins", "lines", "says"), PROGRAMS)
def test_all_origins_and_no_other(run, origins, lines, says):
    torch.manual_seed(0)
    report = report_of(run)
    told = [(f"{origin.kind} {origin.phase} {origin.operator}", origin.line) for origin in report]
    assert told == list(zip(origins, lines, strict=True)) and report.ok is not bool(origins)
    assert re.search(says, str(report), re.MULTILINE) and "diverg" not in str(report), report
    for origin in report:
        assert origin.filename == __file__
        assert origin.source and origin.reached and origin.remedy and origin.chapter and origin.count
        assert origin.kind != "contaminated" or origin.fixed is not None


def test_a_sum_of_finite_numbers_is_nan_if_its_parts_overflow():
    """In which order a processor adds up decides whether they do."""
    assert SAID["sum"]([torch.tensor([3e38, 3e38, -3e38, -3e38])], torch.tensor(nan), ()).startswith("inf − inf, in a")
    factors = [torch.tensor([[9.8e20, 9.8e20]]), torch.tensor([[-4.3e20], [4.3e20]])]
    assert SAID["mm"](factors, torch.tensor([[nan]]), (0, 0)) == "inf − inf, in a sum of 2 products"


def test_equations_are_evaluated():
    told = ["0 / 0 = nan", "exp(100) > 3.4e38", "0 × inf", "1 / 2 = 2", "exp(1) > 3.4e38", "linear of 4×3 elements"]
    told += ["acos(1)", "acos(1.0000001)", "2 × 3 = nan, one of 2 products that are added", "inf − inf = nan, in a sum"]
    assert list(map(is_true, told)) == [True, True, True, False, False, None, False, True, False, True]
    assert not are_true("0 / 0; in backward 2 / 1 = inf") and are_true("0 / 0; in backward 0 × inf")
