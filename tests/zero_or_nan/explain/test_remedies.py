"""What a report says is to be done: each statement runs, and then the gradient is that of an independent reference.

A trial is a program in which something is wrong, and the statements of its remedy. The reference is another formula, in
float64, whose own backward meets no NaN. If a remedy decides what an undefined number is to be, the reference has that
number.
"""

import ast
import functools
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scratch import ROOT
from tensors import leaf
from torch import nn

from zero_or_nan import explain, ignoring
from zero_or_nan.explain.report.remedies import (
    _HALF,
    _IGNORE,
    _IGNORE_AND,
    _IGNORE_GRAD,
    PAGES,
    REMEDIES,
    remedy,
)
from zero_or_nan.functions.numerics import NUMERICS

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")

KINDS = [*REMEDIES, *(("contaminated", operator) for operator in [*NUMERICS, "something else"])]
DTYPES = ["float32", "float16"]
nan = torch.nan


def statements(code):
    """The statements of a remedy, without comments."""
    return [ast.unparse(statement) for statement in ast.parse(code).body]


@functools.cache
def anchors(page):
    """The anchors of the headings of a page."""
    text = (ROOT / "chapters" / f"{page}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text), flags=re.MULTILINE)
    return [re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings]


def test_every_remedy_fits_a_notebook_and_leads_to_a_section_that_is_there():
    for (kind, operator), dtype, fixed in itertools.product(KINDS, DTYPES, (True, False)):
        code, address = remedy(kind, operator, dtype, fixed)
        assert all(len(line) <= 78 for line in code.splitlines()), code
        page, _, anchor = address.removeprefix(PAGES).partition(".html#")
        assert anchor in anchors(page), (kind, operator)


@dataclass
class Trial:
    """A program, and what is to be done about it.

    Attributes:
        program: what goes wrong, to be explained. None where it does not go wrong in every release of PyTorch.
        kind, operator: of the origin that `explain` finds in it.
        x: the leaf whose gradient is compared.
        names: what the statements use.
        result: the name that the statements give to their result. If there is none, the program runs again.
        reference: the same result from `x` in float64.
        only: the statement to run, if they are alternatives.
        before: is called between the statements and the program.
    """

    program: Callable[[], Any]
    kind: str
    operator: str
    x: torch.Tensor
    names: dict[str, Any]
    result: str | None
    reference: Callable[[torch.Tensor], torch.Tensor]
    only: int | None = None
    before: Callable[[], Any] = field(default=lambda: None)


TRIALS: dict[str, Callable[[], Trial]] = {}


def trial(function):
    TRIALS[function.__name__] = function
    return function


def masked(function, x, used):
    """A function of the elements that are used, and 0 for the others."""
    y = torch.zeros_like(x)
    y[used] = function(x[used])
    return y


@trial
def an_element_that_the_loss_ignores():
    x = leaf(0.0, 4.0)
    names = {"x": x}

    def program():
        names["loss"] = torch.where(x > 0, x.log(), 0).sum()
        names["loss"].backward(retain_graph=True)

    return Trial(program, "contaminated", "log", x, names, None, lambda x: x[1:].log())


@trial
def an_element_that_ignoring_cannot_keep_apart():
    x = leaf(0.0, 4.0)
    used = x > 0

    names = {"x": x, "used": used, "f": torch.log}
    return Trial(None, "contaminated", "log", x, names, "y", lambda x: masked(torch.log, x, x > 0))


@trial
def something_undefined():
    x = leaf(0.0, 4.0)
    names = {}

    def program():
        names["y"] = torch.digamma(x)
        names["y"].mean().backward(retain_graph=True)

    return Trial(program, "undefined", "digamma", x, names, "loss", lambda x: x[1:].digamma())


@trial
def something_without_a_derivative():
    x = leaf(0.0, 4.0)
    return Trial(
        lambda: torch.special.entr(x).sum().backward(), "undefined", "special_entr", x,
        {"x": x, "f": torch.special.entr, "at": x == 0}, "y", lambda x: masked(lambda x: -x * x.log(), x, [1]),
    )  # fmt: skip


@trial
def log_of_a_softmax():
    logits = leaf(0.0, 200.0)
    return Trial(
        lambda: logits.softmax(-1).log().sum().backward(), "undefined", "log", logits, {"logits": logits}, "log_p",
        lambda x: x - x.max() - (x - x.max()).exp().sum().log(), only=0,
    )  # fmt: skip


@trial
def log_of_a_sigmoid():
    logits = leaf(-200.0, 1.0)
    return Trial(
        lambda: logits.sigmoid().log().sum().backward(), "undefined", "log", logits, {"logits": logits}, "log_p",
        lambda x: -torch.log1p(torch.exp(-x)), only=1,
    )  # fmt: skip


@trial
def log_of_zero():
    x = leaf(0.0, 4.0)
    return Trial(
        lambda: x.log().sum().backward(), "undefined", "log", x, {"x": x}, "y",
        lambda x: masked(torch.log, x, x > 0) + torch.where(x > 0, 0.0, torch.tensor(1e-8).double().log()), only=2,
    )  # fmt: skip


@trial
def root_of_a_sum_of_squares():
    v = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    return Trial(
        lambda: v.square().sum(-1).sqrt().sum().backward(), "undefined", "sqrt", v, {"v": v}, "y",
        lambda v: masked(lambda v: v.square().sum(-1).sqrt()[:, None], v, [1])[:, 0], only=0,
    )  # fmt: skip


@trial
def root_of_zero():
    x = leaf(0.0, 4.0)
    return Trial(
        lambda: x.sqrt().sum().backward(), "undefined", "sqrt", x, {"x": x}, "y", lambda x: (x + 1e-12) ** 0.5, only=1
    )


@trial
def norm_of_zero():
    x = torch.zeros(2, 3, requires_grad=True)
    return Trial(None, "undefined", "norm", x, {"x": x}, "y", lambda x: ((x * x).sum(-1) + 1e-12) ** 0.5)


@trial
def power_of_zero():
    x = leaf(0.0, 4.0)
    return Trial(
        lambda: (x**0.5).sum().backward(), "undefined", "pow", x, {"x": x, "p": 0.5}, "y",
        lambda x: masked(torch.sqrt, x, x > 0) + torch.where(x > 0, 0.0, 1e-4),
    )  # fmt: skip


@trial
def complex_power_of_zero():
    z = torch.tensor([0j, 4 + 0j], requires_grad=True)
    return Trial(
        lambda: (z**0.5).abs().sum().backward(), "undefined", "pow", z, {"z": z, "p": 0.5}, "y",
        lambda z: masked(torch.sqrt, z, [1]), only=0,
    )  # fmt: skip


@trial
def complex_power_near_zero():
    z = torch.tensor([0j, 4 + 0j], requires_grad=True)
    return Trial(
        lambda: (z**0.5).abs().sum().backward(), "undefined", "pow", z, {"z": z, "p": 0.5}, "y",
        lambda z: (z + 1e-12).sqrt(), only=1,
    )  # fmt: skip


@trial
def total_by_a_count():
    x, count = leaf(1.0, 2.0), torch.tensor(0)
    total = (x * count).sum()
    return Trial(
        lambda: (total / count).backward(retain_graph=True), "undefined", "div", x, {"total": total, "count": count},
        "y", lambda x: x.sum() * 0, only=0,
    )  # fmt: skip


@trial
def vector_by_its_norm():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)

    def reference(x):
        return torch.cat([x[:1] / 1e-6, x[1:] / (x[1:] * x[1:]).sum() ** 0.5])

    return Trial(
        lambda: (x / x.norm(dim=-1, keepdim=True)).sum().backward(), "undefined", "div", x, {"x": x}, "y", reference,
        only=1,
    )  # fmt: skip


@trial
def exponentials_that_underflow():
    x = leaf(-200.0, -203.0)
    return Trial(
        lambda: (x.exp() / x.exp().sum()).log().sum().backward(), "undefined", "div", x, {"x": x}, "log_y",
        lambda x: (x.exp() / x.exp().sum()).log(),
    )  # fmt: skip


@trial
def logarithm_of_exponentials_that_underflow():
    x = leaf(-200.0, -203.0)
    return Trial(
        lambda: x.exp().sum().log().backward(), "undefined", "log", x, {"x": x}, "y", lambda x: x.exp().sum().log()
    )


@trial
def zero_by_zero():
    a, b = leaf(0.0, 6.0), torch.tensor([0.0, 2.0])
    return Trial(
        lambda: (a / b).sum().backward(), "undefined", "div", a, {"a": a, "b": b}, "y",
        lambda a: a * torch.tensor([0.0, 0.5]), only=2,
    )  # fmt: skip


@trial
def mean_of_nothing():
    x = leaf(1.0, 2.0)
    keep = x > 5
    return Trial(
        lambda: x[keep].mean().backward(), "undefined", "mean", x, {"x": x, "keep": keep}, "loss", lambda x: 0 * x.sum()
    )


@trial
def mean_of_no_targets():
    logits, target = torch.zeros(2, 3, requires_grad=True), torch.tensor([-100, -100])
    return Trial(
        lambda: F.cross_entropy(logits, target).backward(), "undefined", "cross_entropy", logits,
        {"logits": logits, "target": target}, "loss", lambda x: 0 * x.sum(),
    )  # fmt: skip


@trial
def spread_of_one_element():
    x = leaf(3.0)
    return Trial(lambda: x.std().backward(), "undefined", "std", x, {"x": x}, "y", lambda x: 0 * x.sum())


@trial
def variance_of_one_element():
    x = leaf(3.0)
    return Trial(lambda: x.var().backward(), "undefined", "var", x, {"x": x}, "y", lambda x: 0 * x.sum())


def by_rows(x, allowed):
    """The softmax of each row over its allowed elements."""
    powers = x.exp() * allowed
    return powers / (powers.sum(-1, keepdim=True) + (powers.sum(-1, keepdim=True) == 0))


@trial
def row_of_nothing():
    x = torch.tensor([[0.5, -1.0], [1.0, 2.0]], requires_grad=True)
    allowed = torch.tensor([[True, True], [False, False]])
    scores = x * 1
    return Trial(
        lambda: scores.masked_fill(~allowed, -torch.inf).softmax(-1).square().sum().backward(retain_graph=True),
        "undefined", "softmax", x, {"scores": scores, "allowed": allowed}, "weights", lambda x: by_rows(x, allowed),
    )  # fmt: skip


@trial
def attention_to_nothing():
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    allowed = torch.tensor([[True, True], [False, False]])
    return Trial(
        None, "undefined", "scaled_dot_product_attention", q, {"q": q, "k": k, "v": k, "allowed": allowed}, "y",
        lambda q: by_rows(q @ k.double().T / 3**0.5, allowed) @ k.double(),
    )  # fmt: skip


@trial
def sample_of_padding():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    x = torch.randn(2, 3, 4, requires_grad=True)
    padding = torch.tensor([[False] * 3, [True] * 3])

    def reference(x):
        query, key, value = (x @ attention.in_proj_weight.double().T).chunk(3, -1)
        seen = by_rows(query @ key.mT / 2, ~padding[:, None]) @ value
        return (seen @ attention.out_proj.weight.double().T) * ~padding.all(-1)[:, None, None]

    names = {"attention": attention, "q": x, "k": x, "v": x, "padding": padding}
    return Trial(
        lambda: attention(x, x, x, key_padding_mask=padding)[0].sum().backward(), "undefined",
        "multi_head_attention_forward", x, names, "y", reference,
    )  # fmt: skip


@trial
def inverse_sine_at_its_end():
    x = leaf(1.0, 0.5)
    return Trial(
        lambda: x.asin().sum().backward(), "undefined", "asin", x, {"x": x}, "y",
        lambda x: masked(torch.asin, x, [1]) + torch.where(x < 1, 0.0, math.asin(1 - 1e-7)),
    )  # fmt: skip


@trial
def action_that_tanh_rounded_to_1():
    x = leaf(1.0, 0.5)
    return Trial(
        lambda: x.atanh().sum().backward(), "undefined", "atanh", x, {"x": x}, "y",
        lambda x: masked(lambda x: ((1 + x) / (1 - x)).log() / 2, x, [1]),
    )  # fmt: skip


@trial
def logit_of_certainty():
    x = leaf(1.0, 0.25)
    return Trial(
        lambda: torch.special.logit(x).sum().backward(), "undefined", "logit", x, {"x": x}, "y",
        lambda x: masked(lambda x: (x / (1 - x)).log(), x, [1]),
    )  # fmt: skip


def one_by_a_root(reference, only):
    x = leaf(0.0, 4.0)
    return Trial(lambda: x.rsqrt().sum().backward(), "undefined", "rsqrt", x, {"x": x}, "y", reference, only)


@trial
def one_by_a_root_of_a_count():
    return one_by_a_root(lambda x: masked(lambda x: x**-0.5, x, [1]), only=0)


@trial
def one_by_a_root_of_a_spread():
    return one_by_a_root(lambda x: (x + 1e-6) ** -0.5, only=1)


def logarithm(name, end, wide):
    x = leaf(end, 4.0)
    return Trial(
        lambda: getattr(x, name)().sum().backward(), "undefined", name, x, {"x": x}, "y", lambda x: masked(wide, x, [1])
    )


@trial
def logarithm_to_the_base_2():
    return logarithm("log2", 0.0, lambda x: x.log() / math.log(2))


@trial
def logarithm_to_the_base_10():
    return logarithm("log10", 0.0, lambda x: x.log() / math.log(10))


@trial
def logarithm_of_1_and_a_number():
    return logarithm("log1p", -1.0, lambda x: (1 + x).log())


@trial
def determinant_of_a_singular_matrix():
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    return Trial(
        lambda: a.logdet().backward(), "undefined", "logdet", a, {"a": a}, "y",
        lambda a: ((a[0, 0] + 1e-3) * (a[1, 1] + 1e-3) - a[0, 1] * a[1, 0]).log(),
    )  # fmt: skip


@trial
def angle_of_equal_vectors():
    x = leaf(1.0, 0.5)
    return Trial(
        lambda: x.acos().sum().backward(), "undefined", "acos", x, {"x": x}, "y",
        lambda x: masked(lambda x: torch.pi / 2 - torch.asin(x), x, x < 1),
    )  # fmt: skip


@trial
def target_longer_than_its_input():
    torch.manual_seed(0)
    x = torch.randn(4, 2, 5, requires_grad=True)
    targets, lengths = torch.tensor([[1, 1, 1, 2], [1, 2, 3, 4]]), torch.tensor([4, 4])
    names = {"log_p": x.log_softmax(-1), "targets": targets, "lengths": lengths, "target_lengths": lengths}

    def reference(x):  # the second target has as many letters as its input has steps: there is one alignment
        log_p = x[:, 1] - x[:, 1].exp().sum(-1, keepdim=True).log()
        return -log_p[torch.arange(4), targets[1]].sum() / 4 / 2

    return Trial(
        lambda: F.ctc_loss(x.log_softmax(-1), targets, lengths, lengths).backward(), "undefined", "ctc_loss", x, names,
        "loss", reference,
    )  # fmt: skip


@trial
def divergence_from_a_target_that_underflows():
    x = leaf(0.0, -200.0)
    log_q = torch.tensor([0.3, 0.7]).log()

    def program():
        F.kl_div(log_q, x.softmax(-1), reduction="sum").backward()

    def reference(x):
        p = 1 / (1 + (x[1] - x[0]).exp())
        return p * (p.log() - log_q[0].double()) + (1 - p) * 0 + (x[1] - x[0]).exp() * (x[1] - x[0] - log_q[1].double())

    return Trial(program, "undefined", "kl_div", x, {"log_q": log_q, "log_p": x.log_softmax(-1)}, "loss", reference)


@trial
def equal_singular_values():
    x = torch.eye(2, requires_grad=True)
    return Trial(
        lambda: torch.linalg.svd(x)[0].sum().backward(), "undefined", "linalg_svd", x, {"x": x}, "s",
        lambda x: x.diagonal(),  # the sum of the singular values has the slope U Vᵀ, here the identity
    )  # fmt: skip


@trial
def equal_singular_values_by_the_older_name():
    x = torch.eye(2, requires_grad=True)
    return Trial(lambda: torch.svd(x)[0].sum().backward(), "undefined", "svd", x, {"x": x}, "s", lambda x: x.diagonal())


@trial
def equal_eigenvalues():
    x = torch.eye(2, requires_grad=True)
    return Trial(
        lambda: torch.linalg.eigh(x)[1].sum().backward(), "undefined", "linalg_eigh", x, {"x": x}, "s",
        lambda x: x.diagonal(),
    )  # fmt: skip


@trial
def direction_of_zero():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    normed = layer.parametrizations.weight
    normed.original1.data[1] = 0
    x = torch.tensor([[1.0, 2.0]])

    def program():
        normed.original0.grad = None
        layer(x).sum().backward()

    def reference(magnitude):
        direction = normed.original1.detach().double()
        return magnitude * (direction @ x[0].double())[:, None] / (direction**2).sum(1, keepdim=True) ** 0.5

    return Trial(program, "undefined", "_weight_norm", normed.original0, {"layer": layer}, None, reference)


@trial
def step_whose_eps_is_rounded_to_0():
    x = nn.Parameter(torch.ones(2, dtype=torch.float16))
    names = {"model": nn.ParameterList([x])}

    def program():
        optimizer = names.get("optimizer") or torch.optim.AdamW([x], eps=1e-8)
        x.data.fill_(1)
        x.grad = torch.zeros_like(x)
        optimizer.step()
        x.grad = None
        x.square().sum().backward()

    return Trial(program, "undefined", "addcdiv", x, names, None, lambda x: x.square())


@trial
def step_that_is_too_large():
    weight, x = nn.Parameter(torch.ones(1)), leaf(2.0)
    weight.grad = torch.tensor([1e30])

    def program():
        weight.data.fill_(1)
        torch.optim.SGD([weight], lr=1e10).step()
        (weight * x).sum().backward(inputs=[x])

    def clipped():
        assert weight.grad <= 1

    names = {"model": nn.ParameterList([weight])}
    return Trial(program, "overflow", "add", x, names, None, lambda x: weight.detach().double() * x, before=clipped)


@trial
def something_too_large():
    x = leaf(100.0)
    return Trial(
        lambda: x.cosh().log().backward(), "overflow", "cosh", x, {"x": x, "f": lambda x: x.cosh().log()}, "y",
        lambda x: x - torch.tensor(2.0).double().log(),
    )  # fmt: skip


@trial
def product_of_large_numbers():
    x = leaf(1e20)
    return Trial(
        lambda: (x * x).log().backward(), "overflow", "mul", x, {"x": x, "f": lambda x: (x * x).log()}, "y",
        lambda x: 2 * x.log(),
    )  # fmt: skip


@trial
def logarithm_of_a_sum_of_exponentials():
    x = leaf(100.0, 99.0)
    return Trial(
        lambda: x.exp().sum().log().backward(), "overflow", "exp", x, {"x": x}, "y", lambda x: x.exp().sum().log(),
        only=0,
    )  # fmt: skip


@trial
def softmax_by_hand():
    x = leaf(100.0, 99.0)
    return Trial(
        lambda: (x.exp() / x.exp().sum()).square().sum().backward(), "overflow", "exp", x, {"x": x}, "y",
        lambda x: x.exp() / x.exp().sum(), only=1,
    )  # fmt: skip


@trial
def softplus_by_hand():
    x = leaf(100.0, 1.0)
    return Trial(
        lambda: (1 + x.exp()).log().sum().backward(), "overflow", "exp", x, {"x": x}, "y",
        lambda x: (1 + x.exp()).log(), only=2,
    )  # fmt: skip


@trial
def ratio_of_two_policies():
    x = leaf(119.0, 0.5)
    return Trial(
        lambda: x.exp().sum().backward(), "overflow", "exp", x, {"x": x}, "y",
        lambda x: torch.stack([0 * x[0] + torch.tensor(20.0).double().exp(), x[1].exp()]), only=3,
    )  # fmt: skip


@trial
def exponential_in_half_precision():
    x = leaf(12.0, dtype=torch.float16)
    names = {"x": x, "f": lambda x: x.exp().log(), "device_type": "cpu"}
    return Trial(lambda: x.exp().log().backward(), "overflow", "exp", x, names, "y", lambda x: x)


@trial
def row_with_a_nan():
    x = torch.tensor([[1.0, nan], [1.0, 2.0]])
    w = torch.ones(2, 1, requires_grad=True)
    names = {"x": x}

    def program():
        names["per_row"] = (x @ w).square().sum(-1)
        names["per_row"].mean().backward(retain_graph=True)

    return Trial(program, "bad input", "matmul", w, names, "loss", lambda w: (w[0] + 2 * w[1]) ** 2)


@trial
def image_with_a_nan():
    images = torch.from_numpy(np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, nan], dtype="float32")).view(2, 1, 2, 2)
    w = torch.ones(1, 1, 2, 2, requires_grad=True)
    names = {"x": images}

    def program():
        names["per_row"] = F.conv2d(names["x"], w).flatten()
        names["per_row"].mean().backward(retain_graph=True)

    return Trial(program, "bad input", "conv2d", w, names, "loss", lambda w: w[0, 0, 0, 0] + 2 * w.flatten()[1:].sum())


@trial
def target_with_a_nan():
    target = torch.from_numpy(np.array([nan, 1.0], dtype="float32"))
    w = torch.tensor([1.0, 3.0], requires_grad=True)
    names = {"x": target}

    def program():
        names["per_row"] = (w - names["x"]).square()
        names["per_row"].mean().backward(retain_graph=True)

    return Trial(program, "bad input", "sub", w, names, "loss", lambda w: (w[1] - 1) ** 2)


@trial
def parameter_with_a_nan():
    model = nn.Linear(2, 1)
    model.weight.data.numpy()[0, 0] = nan
    x = torch.ones(1, 2)

    def program():
        model(x).sum().backward()

    def repair():  # what the statements find
        assert names["bad"] == ["weight"]
        model.weight.data.numpy()[0, 0] = 0.5

    names = {"model": model}
    return Trial(program, "bad input", "linear", model.weight, names, None, lambda w: w.sum(), before=repair)


@trial
def statistics_with_a_nan():
    model = nn.Sequential(nn.BatchNorm1d(2)).eval()
    model[0].running_var.numpy()[0] = nan
    x = leaf(1.0, 2.0)
    return Trial(
        lambda: model(x[None]).sum().backward(), "bad input", "batch_norm", x, {"model": model}, None,
        lambda x: x / (1 + 1e-5) ** 0.5,
    )  # fmt: skip


@trial
def statistics_of_a_batch_with_a_nan():
    model = nn.Sequential(nn.BatchNorm1d(2))
    x = leaf(1.0, 2.0)

    def program():
        if model.training:
            model(torch.tensor([[nan, 1.0], [1.0, 2.0]]))
            model.eval()
        model(x[None]).sum().backward()

    return Trial(program, "bad input", "batch_norm", x, {"model": model}, None, lambda x: x / (1 + 1e-5) ** 0.5)


@trial
def memory_that_was_not_initialized():
    w = leaf(1.0, 2.0)
    names = {"shape": 2, "torch": torch}

    def program():
        x = names.get("x")
        if x is None:
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)  # fills new memory with NaN
            x = torch.empty(2)
            torch.use_deterministic_algorithms(before)
        ((x + 1) * w).sum().backward()

    return Trial(program, "bad input", "add", w, names, None, lambda w: w)


@trial
def gradient_with_a_nan():
    x = leaf(1.0, 2.0)
    x.grad = torch.tensor([nan, 1.0])
    names = {"optimizer": torch.optim.SGD([x])}
    return Trial(lambda: (3 * x).sum().backward(), "bad input", "backward", x, names, None, lambda x: 3 * x)


@functools.cache
def applied(name):
    """Explain a program, do what the report says, and compare. The statements that ran."""
    tried = TRIALS[name]()
    names, x = tried.names, tried.x
    code = explained(tried)
    if tried.operator != "backward":
        x.grad = None
    ran = statements(code) if tried.only is None else [statements(code)[tried.only]]
    names.update(torch=torch, F=F)
    exec("\n".join(ran), names)
    tried.before()
    if tried.result is not None:
        result = names[tried.result]
        assert result.isfinite().all()
        (ignoring.backward if "ignoring" in code else torch.autograd.backward)(total(result))
    elif x.grad is None or tried.operator == "backward":
        tried.program()
    wide = x.detach().to(torch.complex128 if x.is_complex() else torch.float64).requires_grad_()
    wanted = tried.reference(wide)
    (expected,) = torch.autograd.grad(wanted.sum() if tried.result is None else total(wanted), wide)
    assert x.grad.isfinite().all()
    torch.testing.assert_close(x.grad.to(wide.dtype), expected, rtol=2e-4, atol=1e-6)
    return ran


def explained(tried):
    """The remedy, from the report on the program if there is one."""
    if tried.program is None:
        return remedy(tried.kind, tried.operator, "float32", fixed=False)[0]
    with explain() as report:
        tried.program()
    origin = report.origins[0]
    assert (origin.kind, origin.operator) == (tried.kind, tried.operator), report
    return origin.remedy


def total(result):
    """A sum with different weights, so that no symmetry makes a wrong gradient right."""
    result = result.abs() if result.is_complex() else result
    return (result * torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape)).sum()


@pytest.mark.parametrize("name", TRIALS)
def test_its_statements_give_the_gradient_of_a_reference(name):
    assert applied(name)


def test_each_statement_was_run():
    every = [_IGNORE, _IGNORE_AND, _IGNORE_GRAD, _HALF.code, *(each.code for each in REMEDIES.values())]
    ran = {statement for name in TRIALS for statement in applied(name)}
    assert {statement for code in every for statement in statements(code)} == ran


@pytest.mark.parametrize(
    ("program", "situation"),
    [
        (lambda: leaf(-3.2, 1.0).log(), "outside of the domain"),
        (lambda: leaf(-3.2, 1.0).sqrt(), "outside of the domain"),
        (lambda: leaf(-3.2, 1.0).rsqrt(), "outside of the domain"),
        (lambda: leaf(-3.2, 1.0) ** 0.5, "outside of the domain"),
        (lambda: leaf(-3.2, 1.0).log1p(), "outside of the domain"),
        (lambda: leaf(1.5, 0.0).acos(), "outside of the domain"),
        (lambda: leaf(0.5, 2.0).acosh(), "outside of the domain"),
        (lambda: leaf(1.01, 0.0).acos(), "outside of the domain"),
        (lambda: leaf(1.0001, 0.0).acos(), "acos"),  # 1 that was rounded
        (lambda: leaf(-1.0, 1.0).log1p(), "log1p"),
        (lambda: torch.special.xlogy(leaf(0.0, 1.0), leaf(0.0, 1.0)), "a derivative"),
        (lambda: leaf(1.0, 0.0).asin(), "asin"),
        (lambda: leaf(1.0, 2.0).acosh(), "a derivative"),
        (lambda: leaf(1.5, 0.5).logit(), "outside of the domain"),
        (lambda: leaf(-0.5, 0.5).logit(), "outside of the domain"),
        (lambda: torch.diag(leaf(-1.0, 1.0)).logdet(), "slogdet"),
        (lambda: torch.diag(leaf(0.0, 1.0)).slogdet().logabsdet, "slogdet"),
        (lambda: leaf(0.0, 1.0).reciprocal(), "div"),
        (lambda: torch.var_mean(leaf(1.0))[0], "var"),
        (lambda: F.layer_norm(leaf(1.0, 1.0), (2,), eps=0), "layer_norm"),
        (lambda: F.normalize(leaf(0.0, 1.0).half()[:1], dim=0), "layer_norm"),
        (lambda: leaf(0.0, 1.0).log(), "log"),
        (lambda: leaf(-0.0, 1.0).log(), "log"),
        (lambda: leaf(1.0, 2.0)[:0].std(), "a spread of nothing"),
        (lambda: leaf(1.0, 2.0)[:0].mean(), "a mean of nothing"),
        (lambda: F.nll_loss(leaf(1.0)[None], torch.tensor([-100])), "a mean of nothing"),
        (lambda: F.smooth_l1_loss(leaf(1.0)[:0], torch.zeros(0)), "a mean of nothing"),
        (lambda: F.cross_entropy(leaf(1.0)[None], torch.tensor([0]), torch.zeros(1)), "a mean by weights of 0"),
    ],
)
def test_the_operands_say_which_remedy_it_is(program, situation):
    with explain() as report:
        program().sum().backward()
    assert report.origins[0].remedy == REMEDIES["undefined", situation].code


def test_advice_where_no_statement_is_right_for_all():
    advice = {situation for (_, situation), each in REMEDIES.items() if not statements(each.code)}
    assert advice == {
        "outside of the domain",
        "a mean by weights of 0",
        "a spread of nothing",
        "layer_norm",
        "a slope",
        "an unreadable tensor",
    }


def test_clipping_does_not_help_a_slope_that_is_too_large():
    """As the advice says: clipping multiplies inf by 0. What it says instead helps."""
    x, y = leaf(44.2), leaf(1.0)

    def program(scale):
        x.grad = y.grad = None
        ((x - scale).exp() ** 2 + y).backward()

    with explain() as report:
        program(0.0)
    (origin,) = report
    assert (origin.kind, origin.phase) == ("overflow", "backward")
    assert origin.remedy == REMEDIES["overflow", "a slope"].code and "multiplies inf by 0" in origin.remedy
    torch.nn.utils.clip_grad_norm_([x, y], 1.0)
    assert x.grad.isnan() and y.grad == 0
    program(20.0)
    torch.testing.assert_close(x.grad.item(), 2 * math.exp(2 * (44.2 - 20)), rtol=1e-4, atol=0)


def test_the_one_without_an_operator_is_for_all_others():
    assert remedy("undefined", "atan2", "float32", None) == remedy("undefined", "", "float32", None)
    assert remedy("undefined", "sqrt", "float32", None) != remedy("undefined", "", "float32", None)


@pytest.mark.parametrize(
    ("program", "is_underflow"),
    [
        (lambda x: x.exp() / x.exp().sum(), True),
        (lambda x: (x.exp() * 2) / (x.exp() * 2).sum(), True),
        (lambda x: x.exp2().mean().log(), True),
        (lambda x: (x * 0) / (x * 0).sum(), False),
        (lambda x: (x * 0).sum().log(), False),
        (lambda x: x.masked_fill(x < 0, -torch.inf).exp().sum().log(), False),  # all are left out, none underflows
        (lambda x: (x + torch.tensor([-torch.inf, -torch.inf])).exp().sum().log(), False),
        (lambda x: (x.exp() + 1).log() / (x * 0), False),
        (lambda x: x / x.exp().std(), False),
        (lambda x: x / (x.exp() - x.exp()), False),
        (lambda x: 1 / (x.exp() @ torch.ones(2)), True),
    ],
)
def test_a_zero_that_underflowed_is_not_replaced(program, is_underflow):
    """Another number in place of it is wrong; of a zero of another kind it may be right."""
    x = leaf(-200.0, -203.0)
    with explain() as report:
        program(x).sum().backward()
    origin = report.origins[0]
    assert origin.operands.endswith("after an exp that underflowed to 0") == is_underflow
    assert ("where" not in origin.remedy and "clamp_min" not in origin.remedy) == is_underflow


def test_what_was_large_before_the_line_is_said_to_have_grown():
    with explain() as report:
        h = leaf(1.0, 1.0)
        for _ in range(12):
            h = torch.full((2, 2), 1e4) @ h
        h.sum().backward()
    (origin,) = report
    assert origin.remedy == REMEDIES["overflow", "large numbers"].code
    with explain() as report:
        (leaf(1e25, 1.0) * 1e15).sum().backward()
    assert report.origins[0].remedy == REMEDIES["overflow", "large numbers"].code
    with explain() as report:
        leaf(100.0).cosh().sum().backward()
    assert report.origins[0].remedy == REMEDIES["overflow", ""].code
