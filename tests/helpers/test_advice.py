"""The advice is about the nodes that people meet, and it says of them what PyTorch computes."""

import re

import pytest
import torch
import torch.nn.functional as F
from scratch import ROOT
from torch.nn.attention import sdpa_kernel

from helpers.advice import ADVICE, answers, why
from helpers.atlas import points_by_node
from helpers.nodes import Node, nodes
from helpers.points import POINTS
from zero_or_nan import explain

EVERY = nodes()
NAN, INF = float("nan"), float("inf")
GIVEN = {
    **vars(torch),
    **vars(F),
    "torch": torch,
    "target": torch.tensor([NAN, 1.0]),
    "ok": torch.tensor([False, True]),
}
GIVEN |= {"d": torch.tensor([0.0, 1.0]), "bad": torch.tensor([NAN, INF]), "label": torch.tensor([0])}
CTC = "ctc_loss(x.expand(1, 2).log_softmax(1), ones(1, 2), label + 1, label + 2{})"
FIXES = {
    "PowBackward0": ("(x - target) ** 2", "{}"),
    "PowBackward1": ("(lambda p: where(ok, x ** p, 0))(x[-1])", "(lambda p: where(ok, {}, 0))(x[-1])", (-2.0, 1.5)),
    "DivBackward0": ("where(ok, x / d, 0)", "where(ok, {}, 0)"),
    "ReciprocalBackward0": ("where(ok, (x * d).reciprocal(), 0)", "1 / where(ok, x * d, 1)"),
    "ExpBackward0": ("where(ok, x.exp(), 0)", "where(ok, {}, 0)", (100.0, 2.0)),
    "MulBackward0": ("x * target", "x[ok] * target[ok]"),
    "LogBackward0": ("x.log() * d", "{} * d", (0.0, 2.0)),
    "AcosBackward0": ("x.acos() * d", "{}.acos() * d", (1.0, 0.5)),
    "XlogyBackward0": ("xlogy(x, x) * d", "{} * d", (0.0, 2.0)),
    "StdBackward0": ("x[:1].std()", "x[:1].std({})"),
    "MseLossBackward0": ("mse_loss(x, target)", "(lambda loss: {})(mse_loss)"),
    "SigmoidBackward0": ("(x * target).sigmoid()", "(x[ok] * target[ok]).sigmoid()"),
    "CosBackward0": ("where(ok, (x / d).cos(), 0)", "where(ok, (x / where(ok, d, 1)).cos(), 0)"),
    "SmoothL1LossBackward0": ("smooth_l1_loss(x, target)", "(lambda loss: {})(smooth_l1_loss)"),
    "BinaryCrossEntropyWithLogitsBackward0": tuple(
        f"binary_cross_entropy_with_logits(x{at}, target{at})" for at in ("", "[ok]")
    ),
    "NllLossBackward0": ("cross_entropy(x[None], label, 0 * d)", "cross_entropy(x[None], label, 0 * d, {})"),
    "NormBackward1": tuple(f"pairwise_distance(x[:, None] * 3, d[:, None], {p})" for p in (100, 4)),
    "SoftmaxBackward0": ("(x - inf).softmax(0)", "x.masked_fill(ok, -inf).softmax(0)"),
    "LogSoftmaxBackward0": ("(x - inf).log_softmax(0)", "x.masked_fill(ok, -inf).log_softmax(0)[0]"),
    "AddmmBackward0": ("linear(target[:, None], x[:, None], x)", "linear(target[ok][:, None], x[:, None], x)"),
    "CtcLossBackward0": (CTC.format(""), CTC.format(", {}")),
}
"""By node, code that makes NaN, and the code that the advice gives in place of `{}`, or that it describes. Then `x`."""
COPIED = {name for name, row in FIXES.items() if "{}" in row[1]}


def gradient(code, x=(1.0, 2.0), of=slice(None)):
    """The gradient of the elements `of`, if there are no others."""
    x = torch.tensor(x)[of].requires_grad_()
    given = {name: GIVEN[name][of] for name in ("target", "ok", "d")}
    eval(code, {**GIVEN, **given, "x": x}).nansum().backward()
    return x.grad


def spans(name):
    return re.findall("`(.+?)`", ADVICE[name].get("fix", ""))


def fixed(name):
    return FIXES[name][1].replace("{}", [*spans(name), ""][0])


@pytest.mark.parametrize("name", FIXES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in", "ignore:std")
def test_the_node_returns_nan_for_the_reason_given_and_its_fix_is_finite(name):
    broken, _, *x = FIXES[name]
    with pytest.raises(RuntimeError, match=f"'{name}' returned nan"), torch.autograd.detect_anomaly():
        gradient(broken, *x)
    assert gradient(fixed(name), *x).isfinite().all()


@pytest.mark.parametrize("name", sorted(COPIED - {"CtcLossBackward0", "NllLossBackward0", "StdBackward0"}))
def test_code_to_copy_gives_the_gradient_of_the_good_elements_alone(name):
    broken, _, *x = FIXES[name]
    alone = gradient(broken, *x, of=slice(1, None))
    torch.testing.assert_close(gradient(fixed(name), *x), torch.cat([torch.zeros(1), alone]))


def test_all_other_code_in_the_advice_names_what_exists():
    names = {"torch": torch, "explain": explain, "sdpa_kernel": sdpa_kernel, "p": 2}
    tried = {ADVICE[name]["fix"] for name in COPIED}
    for code in {code for name in ADVICE if ADVICE[name].get("fix") not in tried for code in spans(name)}:
        eval(code.partition("(")[0], names)


def test_a_node_returns_no_nan_by_itself_if_the_advice_says_so():
    code = {"AddBackward0": "x + bad", "SubBackward0": "bad - x", "WhereBackward0": "where(ok, x, bad)"}
    code |= {"NanToNumBackward0": "x.nan_to_num()", "PermuteBackward0": "x.permute(0)"}
    code |= {"AsStridedBackward0": "x.as_strided((2,), (1,))", "AbsBackward0": "x.abs()"}
    assert set(code) in [set(names) for answer, names in answers(EVERY).items() if "Not by itself" in answer]
    for each in code.values():
        assert gradient(each, x=(NAN, INF)).isfinite().all(), each


def test_what_is_known_of_a_function_says_why():
    assert "Yes: at −1 and 1 the slope is infinite" in why(EVERY["AcosBackward0"])
    steep = "Yes: at 0 the slope is infinite, and 0 times this slope is NaN. Below 0 the value is NaN."
    assert why(EVERY["Log2Backward0"]) == steep
    assert why(EVERY["DivBackward0"]) == "Yes: if `other` is 0, neither the value nor the slope is finite."
    assert why(EVERY["SoftmaxBackward0"]) == "Yes: if all elements of a row are −inf."
    assert why(EVERY["BmmBackward0"]) == why(EVERY["ExpBackward0"]) != why(EVERY["CudnnRnnBackward0"])
    with pytest.raises(ValueError, match="nothing is known of the numbers of OddBackward0; write why"):
        why(Node("OddBackward0"))


def test_every_node_that_people_meet_in_pasted_texts_and_in_the_atlas_has_advice():
    texts = "".join((ROOT / f"tests/site/{name}.json").read_text("utf-8") for name in ("pasted", "queries"))
    met = {f"{name}{digit or 0}" for name, digit in re.findall(r"\b([A-Z]\w*Backward)(\d?)", texts)}
    met |= points_by_node([point for group in POINTS.values() for point in group]).keys()
    assert met & set(EVERY) <= set(ADVICE) <= set(EVERY)
