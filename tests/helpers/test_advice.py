"""The advice is about the nodes that people meet, and it says of them what PyTorch computes."""

import contextlib
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from scratch import ROOT
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from helpers import advice
from helpers.advice import ADVICE, RARE, answer
from helpers.atlas import graph_nodes, points_by_node
from helpers.nodes import nodes
from helpers.points import POINTS
from zero_or_nan import explain
from zero_or_nan.functions.graph import run
from zero_or_nan.masks.trees import tree_flatten, tree_unflatten
from zero_or_nan.selfcheck.poisoned import database

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


def test_what_is_known_of_a_function_says_why():
    said = {name: answer(EVERY[f"{name}Backward0"]).why for name in "Acos Log2 Div Addcdiv Softmax Bmm Exp Erf".split()}
    assert "Yes: at −1 and 1 the slope is infinite" in said["Acos"]
    assert said["Log2"] == "Yes: at 0 the slope is infinite, and 0 times this slope is NaN. Below 0 the value is NaN."
    assert said["Div"] == "Yes: if `other` is 0, neither the value nor the slope is finite."
    assert said["Addcdiv"] == said["Div"].replace("other", "tensor2")
    assert said["Softmax"] == "Yes: if all elements of a row are −inf."
    assert said["Bmm"] == said["Exp"] == said["Erf"] == advice.MULTIPLIES.why


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "Unique2": "RAISES", "Round": "IS_ZERO", "Normal": "IS_ZERO", "ViewAsReal": "ONLY_ARRIVES",
        "ForeachMaximum": "PERHAPS", "Gather": "ONLY_ARRIVES", "Complex": "ONLY_ARRIVES",
        "MaskedScatterBackward": "ONLY_ARRIVES", "Igamma": "MULTIPLIES", "Renorm": "PERHAPS",
    }.items(),
)  # fmt: skip
def test_of_other_nodes_the_formula_and_what_the_node_saves_say_why(name, expected):
    assert answer(EVERY[f"{name}Backward0"]) is getattr(advice, expected)


def test_a_derivative_without_a_formula_raises():
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.ones(2, requires_grad=True).unique()[0].sum().backward()


@pytest.fixture(scope="module")
def returned(quick_samples):
    """By node, the kinds of numbers that it returned on PyTorch's samples, with NaN and others put into the inputs.

    A node gets finite numbers, also 0. Operators that use a NaN as an address are left out.
    """
    found = {}
    for op in database():
        if op.supports_autograd and not {op.name, op.aten_name} & CRASHES:
            samples = itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), 6)
            for sample, poison in itertools.product(samples, (NAN, INF, 0.0, 3e38)):
                leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
                with contextlib.suppress(Exception):  # the poison is not possible here
                    first, args, kwargs = tree_unflatten([poisoned(leaf, poison) for leaf in leaves], spec)
                    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for absent GPUs
                    see(found, poison, tree_flatten(op(first, *args, **kwargs))[0])
    return found


CRASHES = {"grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"}


def poisoned(leaf, poison):
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout is not torch.strided:
        return leaf
    changed = leaf.detach().clone()
    changed.view(-1)[::2] = poison
    return changed.requires_grad_(leaf.requires_grad)


def see(found, poison, results):
    for node in {node for result in results if isinstance(result, Tensor) for node in graph_nodes(result)}:
        for sent in (0, 1):
            with contextlib.suppress(RuntimeError):  # a derivative without a formula
                cotangents = [torch.full(m.shape, sent, dtype=m.dtype) for m in node._input_metadata]
                given = [each for each in run(node, *cotangents) if isinstance(each, Tensor) and not each.is_sparse]
                kinds = {"nan" if each.isnan().any() else "other" if each.any() else "zero" for each in given}
                found.setdefault(node.name(), {}).setdefault(poison, set()).update(kinds)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_answers_hold_on_the_samples_of_pytorch(returned):
    said = {name: (RARE | ADVICE).get(name, {}).get("why") or answer(EVERY[name]).why for name in EVERY}
    seen = {name: set().union(*returned[name].values()) for name in returned.keys() & EVERY.keys()}
    harmless = {name for name in seen if said[name].startswith(("Not", "Never"))}
    assert len(harmless) > 120 and [name for name in harmless if "nan" in seen[name]] == []
    flat = {name for name in harmless if said[name] == advice.IS_ZERO.why}
    assert len(flat) > 8 and all(seen[name] == {"zero"} for name in flat)
    multiplies = {name for name in seen if said[name] == advice.MULTIPLIES.why}
    assert len(multiplies) > 30 and [name for name in multiplies if "nan" not in returned[name][NAN]] == []


def test_every_node_in_pasted_texts_and_in_the_atlas_has_a_clear_answer():
    texts = "".join((ROOT / name).read_text("utf-8") for name in ("chapters/pasted.json", "tests/site/queries.json"))
    met = {
        f"{name}{digit or 0}"
        for name, digit in re.findall(r"(?:Function '?|detected in )([A-Z]\w*Backward)(\d?)", texts)
    }
    met |= points_by_node([point for group in POINTS.values() for point in group]).keys()
    unclear = {name for name in met & set(EVERY) if answer(EVERY[name]) is advice.PERHAPS}
    assert unclear <= {*ADVICE, *RARE} <= set(EVERY) and not set(ADVICE) & set(RARE)


def test_a_tensor_that_the_list_calls_saved_can_be_printed():
    node = torch.ones(2, 2, requires_grad=True).renorm(2, 0, 1.0).grad_fn
    assert [getattr(node, f"_saved_{name}").shape for name in advice.numbers_in(EVERY[node.name()])] == [(2, 2)]
