"""What a report says is to be done: each statement runs, and then the gradient is that of an independent reference.

A trial is a program in which something is wrong, and the statements of its remedy. The reference is another formula, in
float64, whose own backward meets no NaN. If a remedy decides what an undefined number is to be, the reference has that
number.
"""

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from scratch import ROOT
from tensors import leaf
from torch import nn

from helpers.atlas import measure
from helpers.points import POINTS
from zero_or_nan import ignoring
from zero_or_nan.explain.report.remedies import (
    _IGNORE,
    _IGNORE_AND,
    _IGNORE_GRAD,
    PAGES,
    REMEDIES,
    remedy,
)
from zero_or_nan.functions.numerics import NUMERICS

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")

KINDS = [*REMEDIES, *itertools.product(["contaminated", "undefined"], [*NUMERICS, "something else"])]
nan = torch.nan


def statements(code):
    """The statements of a remedy, without comments."""
    return [ast.unparse(statement) for statement in ast.parse(code).body]


@functools.cache
def anchors(page):
    """Those of the sections of a page."""
    text = (ROOT / "chapters" / f"{page}.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}


def test_every_remedy_fits_a_notebook_and_leads_to_a_section_that_is_there():
    for (kind, operator), dtype, fixed in itertools.product(KINDS, ["float32", "float16"], (True, False)):
        code, address = remedy(kind, operator, dtype, fixed)
        is_rewrite = code.startswith("# the numbers of this call")
        assert is_rewrite or all(len(line) <= 78 for line in code.splitlines()), code
        page, _, anchor = address.removeprefix(PAGES).partition(".html#")
        assert anchor in anchors(page), (kind, operator)


@pytest.mark.parametrize("point", [each for group in POINTS.values() for each in group], ids=lambda point: point.name)
def test_a_point_of_the_atlas_is_linked_there_or_where_more_is_said(point):
    report = report_of(lambda: measure(point.code, point.at, point.given))
    assert not [origin for origin in report if "undefined.html#what-to-do" in origin.chapter]


@dataclass
class Trial:
    """A program, and what is to be done about it.

    Attributes:
        origin: kind and operator of the origin that `explain` finds in the program.
        x: the leaf whose gradient is compared.
        program: what goes wrong, to be explained. None where it does not go wrong in every release of PyTorch.
        result: the name that the statements give to their result. If there is none, the program runs again.
        reference: the same result from `x` in float64.
        only: the statement to run, if they are alternatives.
        names: what the statements use.
        before: is called between the statements and the program.
    """

    origin: str
    x: torch.Tensor
    program: Callable[[], Any] | None
    result: str | None
    reference: Callable[[torch.Tensor], torch.Tensor]
    only: int | None = None
    names: dict[str, Any] = field(default_factory=dict)
    before: Callable[[], Any] = field(default=lambda: None)


def of(origin, x, function, result, reference, only=None, **names):
    """A trial of a function of one leaf. The statements call the leaf as the function calls its parameter."""
    names = {"x": x, **names}
    if function is not None:
        names.update(dict.fromkeys(inspect.signature(function).parameters, x))

    def program():
        names["y"] = function(x)
        names["loss"] = names["y"].sum()
        names["loss"].backward(retain_graph=True)

    return lambda: Trial(origin, x, function and program, result, reference, only, names)


def masked(function, x, used):
    """A function of the elements that are used, and 0 for the others."""
    y = torch.zeros_like(x)
    y[used] = function(x[used])
    return y


def by_rows(x, allowed):
    """The softmax of each row over its allowed elements."""
    powers = x.exp() * allowed
    return powers / (powers.sum(-1, keepdim=True) + (powers.sum(-1, keepdim=True) == 0))


ALLOWED = torch.tensor([[True, True], [False, False]])
QUERIES, KEYS = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3)

TRIALS: dict[str, Callable[[], Trial]] = {
    "an element that ignoring can't keep apart": of(
        "contaminated log", leaf(0.0, 4.0), None, "y", lambda x: masked(torch.log, x, x > 0), f=torch.log,
        used=torch.tensor([False, True]),
    ),
    "an element that the loss ignores": of(
        "contaminated log", leaf(0.0, 4.0), lambda x: torch.where(x > 0, x.log(), 0), None, lambda x: x[1:].log()
    ),
    "something undefined": of(
        "undefined digamma", leaf(0.0, 4.0), lambda x: torch.digamma(x), "loss", lambda x: x[1:].digamma()
    ),
    "attention to nothing": of(
        "undefined scaled_dot_product_attention", QUERIES, None, "y",
        lambda q: by_rows(q @ KEYS.double().T / 3**0.5, ALLOWED) @ KEYS.double(), q=QUERIES, k=KEYS, v=KEYS,
        allowed=ALLOWED,
    ),
    "something without a derivative": of(
        "undefined special_entr", leaf(0.0, 4.0), lambda x: torch.special.entr(x), "y",
        lambda x: masked(lambda x: -x * x.log(), x, [1]), f=torch.special.entr, at=torch.tensor([True, False]),
    ),
    "complex power of 0": of(
        "undefined pow", leaf(0j, 4 + 0j), lambda z: (z**0.5).abs(), "y", lambda z: masked(torch.sqrt, z, [1]),
        only=0, p=0.5,
    ),
    "complex power near 0": of(
        "undefined pow", leaf(0j, 4 + 0j), lambda z: (z**0.5).abs(), "y", lambda z: (z + 1e-12).sqrt(), only=1, p=0.5
    ),
    "mean of nothing": of(
        "undefined mean", leaf(1.0, 2.0), lambda x: x[x > 5].mean(), "loss", lambda x: 0 * x.sum(),
        keep=torch.tensor([False, False]),
    ),
    "a target with a gap": of(
        "bad input sub", leaf(1.0, 2.0), lambda prediction: (prediction - torch.tensor([nan, 0.5])).cumsum(0), "loss",
        lambda x: x[1:] - 0.5, target=torch.tensor([nan, 0.5]), loss_of=torch.sub,
    ),
    "determinant of a singular matrix": of(
        "undefined logdet", leaf([1.0, 1.0], [1.0, 1.0]), lambda a: a.logdet(), "y",
        lambda a: ((a[0, 0] + 1e-3) * (a[1, 1] + 1e-3) - a[0, 1] * a[1, 0]).log(),
    ),
    # The sum of the singular values has the slope U Vᵀ, here the identity.
    "equal singular values": of(
        "undefined linalg_svd", leaf([1.0, 0.0], [0.0, 1.0]), lambda x: torch.linalg.svd(x)[0], "s",
        lambda x: x.diagonal(),
    ),
    "equal eigenvalues": of(
        "undefined linalg_eigh", leaf([1.0, 0.0], [0.0, 1.0]), lambda x: torch.linalg.eigh(x)[1], "s",
        lambda x: x.diagonal(),
    ),
    "something too large": of(
        "overflow cosh", leaf(100.0), lambda x: x.cosh().log(), "y", lambda x: x - torch.tensor(2.0).double().log(),
        f=lambda x: x.cosh().log(),
    ),
    "logarithm of a sum of exponentials": of(
        "overflow exp", leaf(100.0, 99.0), lambda x: x.exp().sum().log(), "y", lambda x: x.exp().sum().log(), only=0
    ),
    "softmax by hand": of(
        "overflow exp", leaf(100.0, 99.0), lambda x: (x.exp() / x.exp().sum()).square(), "y",
        lambda x: x.exp() / x.exp().sum(), only=1,
    ),
    "softplus by hand": of(
        "overflow exp", leaf(100.0, 1.0), lambda x: (1 + x.exp()).log(), "y", lambda x: (1 + x.exp()).log(), only=2
    ),
    "exponential in half precision": of(
        "overflow exp", leaf(12.0, dtype=torch.float16), lambda x: x.exp().log(), "y", lambda x: x,
        f=lambda x: x.exp().log(), device_type="cpu",
    ),
}  # fmt: skip


def trial(function):
    TRIALS[function.__name__] = function
    return function


@trial
def sample_of_padding():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    x, padding = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[False] * 3, [True] * 3])

    def program():
        attention(x, x, x, key_padding_mask=padding)[0].sum().backward()

    def reference(x):
        query, key, value = (x @ attention.in_proj_weight.double().T).chunk(3, -1)
        seen = by_rows(query @ key.mT / 2, ~padding[:, None]) @ value
        return (seen @ attention.out_proj.weight.double().T) * ~padding.all(-1)[:, None, None]

    names = {"attention": attention, "q": x, "k": x, "v": x, "padding": padding}
    return Trial("undefined multi_head_attention_forward", x, program, "y", reference, names=names)


@trial
def direction_of_zero():
    layer, x = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), torch.tensor([[1.0, 2.0]])
    normed = layer.parametrizations.weight
    normed.original1.data[1] = 0

    def program():
        normed.original0.grad = None
        layer(x).sum().backward()

    def reference(magnitude):
        direction = normed.original1.detach().double()
        return magnitude * (direction @ x[0].double())[:, None] / (direction**2).sum(1, keepdim=True) ** 0.5

    return Trial("undefined _weight_norm", normed.original0, program, None, reference, names={"layer": layer})


@trial
def step_whose_eps_is_rounded_to_0():
    x = nn.Parameter(torch.ones(2, dtype=torch.float16))

    def program():
        optimizer = names.get("optimizer") or torch.optim.AdamW([x], eps=1e-8)
        x.data.fill_(1)
        x.grad = torch.zeros_like(x)
        optimizer.step()
        x.grad = None
        x.square().sum().backward()

    names = {"model": nn.ParameterList([x])}
    return Trial("undefined addcdiv", x, program, None, lambda x: x.square(), names=names)


@trial
def step_that_is_too_large():
    weight, x = nn.Parameter(torch.ones(1)), leaf(2.0)
    weight.grad = torch.tensor([1e30])

    def program():
        weight.data.fill_(1)
        torch.optim.SGD([weight], lr=1e10).step()
        (weight * x).sum().backward(inputs=[x])

    names = {"model": nn.ParameterList([weight])}
    return Trial("overflow add", x, program, None, lambda x: weight.detach().double() * x, names=names)


@trial
def image_with_a_nan():
    """The statements leave the bad rows out."""
    w = torch.ones(1, 1, 2, 2, requires_grad=True)
    values = torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, nan])
    names = {"x": torch.from_numpy(values.numpy()).view(2, 1, 2, 2)}  # no function of PyTorch has made it

    def program():
        names["per_row"] = F.conv2d(names["x"], w).flatten()
        names["per_row"].mean().backward(retain_graph=True)

    return Trial(
        "bad input conv2d", w, program, "loss", lambda w: w.flatten() @ names["x"][0].flatten().double(), names=names
    )


@trial
def parameter_with_a_nan():
    model = nn.Linear(2, 1)
    model.weight.data.numpy()[0, 0] = nan

    def repair():  # what the statements find
        assert names["bad"] == ["weight"]
        model.weight.data.numpy()[0, 0] = 0.5

    names = {"model": model}

    def program():
        model(torch.ones(1, 2)).sum().backward()

    return Trial("bad input linear", model.weight, program, None, lambda w: w.sum(), names=names, before=repair)


@trial
def statistics_of_a_batch_with_a_nan():
    """The statements reset the running statistics of a norm."""
    model, x = nn.Sequential(nn.BatchNorm1d(2)), leaf(1.0, 2.0)

    def program():
        if model.training:
            model(torch.tensor([[nan, 1.0], [1.0, 2.0]]))
            model.eval()
        model(x[None]).sum().backward()

    return Trial("bad input batch_norm", x, program, None, lambda x: x / (1 + 1e-5) ** 0.5, names={"model": model})


@trial
def memory_that_was_not_initialized():
    w = leaf(1.0, 2.0)

    def program():
        x = names.get("x")
        if x is None:
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)  # fills new memory with NaN
            x = torch.empty(2)
            torch.use_deterministic_algorithms(before)
        ((x + 1) * w).sum().backward()

    names = {"shape": 2}
    return Trial("bad input add", w, program, None, lambda w: w, names=names)


@trial
def gradient_with_a_nan():
    x = leaf(1.0, 2.0)
    x.grad = torch.tensor([nan, 1.0])
    program, names = lambda: (3 * x).sum().backward(), {"optimizer": torch.optim.SGD([x])}
    return Trial("bad input backward", x, program, None, lambda x: 3 * x, names=names)


def advice_on(origin):
    """The advice on an origin, also if a rewrite or the program's own line is printed in its place."""
    if "ried on your numbers" not in origin.remedy and origin.kind != "contaminated":
        return origin.remedy
    kind = "undefined" if origin.exact and " ends at " not in origin.exact else origin.kind
    return remedy(kind, origin.operator, origin.dtype, origin.fixed, origin.operands, origin.phase)[0]


@functools.cache
def applied(name):
    """Explain a program, do what the report says, and compare. The statements that ran."""
    tried = TRIALS[name]()
    names, x = tried.names, tried.x
    kind, operator = tried.origin.rsplit(maxsplit=1)
    if tried.program is None:
        code = remedy(kind, operator, "float32", fixed=False)[0]
    else:
        first = report_of(tried.program).origins[0]
        assert (first.kind, first.operator) == (kind, operator), first
        code = advice_on(first)
    if operator != "backward":
        x.grad = None
    ran = statements(code) if tried.only is None else [statements(code)[tried.only]]
    names.update(torch=torch, F=F)
    exec("\n".join(ran), names)
    tried.before()
    if tried.result is not None:
        result = names[tried.result]
        assert result.isfinite().all()
        (ignoring.backward if "ignoring" in code else torch.autograd.backward)(total(result))
    elif x.grad is None or operator == "backward":
        tried.program()
    wide = x.detach().to(torch.complex128 if x.is_complex() else torch.float64).requires_grad_()
    wanted = tried.reference(wide)
    (expected,) = torch.autograd.grad(wanted.sum() if tried.result is None else total(wanted), wide)
    assert x.grad.isfinite().all()
    torch.testing.assert_close(x.grad.to(wide.dtype), expected, rtol=2e-4, atol=1e-6)
    return ran


def total(result):
    """A sum with different weights, so that no symmetry makes a wrong gradient right."""
    result = result.abs() if result.is_complex() else result
    return (result * torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape)).sum()


@pytest.mark.parametrize("name", TRIALS)
def test_its_statements_give_the_gradient_of_a_reference(name):
    assert applied(name)


def test_each_statement_was_run():
    every = [_IGNORE, _IGNORE_AND, _IGNORE_GRAD, *(each.code for each in REMEDIES.values())]
    ran = {statement for name in TRIALS for statement in applied(name)}
    assert {statement for code in every for statement in statements(code)} == ran


SITUATIONS = [
    ("undefined", "outside of the domain", lambda: leaf(-3.2, 1.0) ** 0.5),
    ("undefined", "outside of the domain", lambda: leaf(1.01, 0.0).acos()),
    ("undefined", "outside of the domain", lambda: leaf(-0.5, 0.5).logit()),
    ("undefined", "a derivative", lambda: torch.special.xlog1py(leaf(0.0, 1.0), leaf(-1.0, 1.0))),
    ("undefined", "a derivative", lambda: leaf(1.0, 2.0).acosh()),
    ("undefined", "slogdet", lambda: torch.diag(leaf(-1.0, 1.0)).logdet()),
    ("undefined", "slogdet", lambda: torch.diag(leaf(0.0, 1.0)).slogdet().logabsdet),
    ("undefined", "layer_norm", lambda: F.layer_norm(leaf(1.0, 1.0), (2,), eps=0)),
    ("undefined", "layer_norm", lambda: F.normalize(leaf(0.0, 1.0).half()[:1], dim=0)),
    ("undefined", "a spread of nothing", lambda: leaf(1.0, 2.0)[:0].std()),
    ("undefined", "a mean of nothing", lambda: F.nll_loss(leaf(1.0)[None], torch.tensor([-100]))),
    ("undefined", "a mean of nothing", lambda: F.smooth_l1_loss(leaf(1.0)[:0], torch.zeros(0))),
    ("undefined", "a mean by weights of 0", lambda: F.cross_entropy(leaf([1.0]), torch.tensor([0]), torch.zeros(1))),
    ("overflow", "", lambda: leaf(100.0).cosh()),
    ("overflow", "large numbers", lambda: leaf(1e25, 1.0) * 1e15 * 1e300),
    (
        "overflow",
        "a growth",
        lambda: functools.reduce(lambda h, _: h * 1e4, range(12), leaf(1.0)),
    ),
    ("overflow", "a slope", lambda: leaf(44.2).exp() ** 2),
]


@pytest.mark.parametrize(("kind", "situation", "program"), SITUATIONS)
def test_the_operands_say_which_remedy_it_is(kind, situation, program):
    report = report_of(lambda: program().sum().backward())
    assert advice_on(report.origins[0]) == REMEDIES[kind, situation].code, report


def test_advice_in_place_of_a_rewrite_that_could_not_be_tried():
    code, address = remedy("undefined", "softmax", "float32", None)
    assert code.startswith("# the numbers of this call are not known any more") and "attention" in address
    assert "y = x.masked_fill(" in code
    code, _ = remedy("undefined", "sqrt", "float32", None, refused=["wrong(x)"])
    assert "constant in the code:\n#   wrong(x)" in code
