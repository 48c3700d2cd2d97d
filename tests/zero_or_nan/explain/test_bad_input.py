"""Data that are not finite are named as such: not the mask beside them, not a function that has a pole elsewhere."""

import math

import pytest
import torch
import torch.nn.functional as F
from origins import report_of, telling
from tensors import leaf
from torch import nn

from zero_or_nan import explain

inf, nan = math.inf, math.nan

told = telling("kind", "operator")
MASK = torch.full((3, 3), -inf).triu(1)
MASKS = {
    "added": lambda s: (s + MASK).softmax(-1),
    "in place": lambda s: s.add_(MASK).softmax(-1),
    "filled": lambda s: s.masked_fill(MASK < 0, -inf).softmax(-1),
    "chosen": lambda s: torch.where(MASK < 0, -inf, s).softmax(-1),
    "by hand": lambda s: (s + MASK).exp() / (s + MASK).exp().sum(-1, keepdim=True),
    "fused": lambda s: F.scaled_dot_product_attention(s, s, s, attn_mask=MASK),
    "an infinity for a minimum": lambda s: s.masked_fill(torch.eye(3) > 0, inf).amin(-1),
}


@pytest.mark.parametrize("bad", [nan, inf, 1.0])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_beside_data(name, bad):
    x, weight = torch.rand(2, 3, 3), torch.eye(3, requires_grad=True)
    x[0, 0, 0] = bad
    report = report_of(lambda: MASKS[name](torch.matmul(x, weight) * 1).sum().backward())
    is_finite = weight.grad.isfinite().all()
    assert told(report) == ([] if is_finite else [("bad input", "matmul")]) and (bad == bad or not is_finite)


def test_masks_of_an_encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    padding = torch.zeros(2, 3).masked_fill(torch.tensor([[False, False, True], [False, True, True]]), -inf)
    for bad, expected in ((nan, [("bad input", "multi_head_attention_forward")]), (1.0, [])):
        x = torch.rand(2, 3, 4)
        x[0, 0, 0] = bad
        layer.zero_grad()
        with explain() as report:
            layer(x, src_mask=MASK, src_key_padding_mask=padding).sum().backward()
        assert told(report) == expected


def test_an_infinity_is_told_of_beside_data():
    """If it goes on, or has become NaN."""
    weight, infinite, missing = leaf(0.0, 1.0), torch.tensor([-inf, 1.0]), torch.tensor([1.0, nan])
    report = report_of(lambda: (leaf(1.0, 1.0) * missing + infinite).sum().backward())
    assert told(report) == [("bad input", "mul"), ("bad input", "add")]
    with explain() as report:
        product = weight * infinite
        (product * missing).softmax(0).sum().backward()
    assert [origin.operands for origin in report] == ["-inf in infinite", "nan in missing"]


ELEMENTWISE = {
    **{name: getattr(torch, name) for name in "atanh lgamma logit".split()},
    "remainder": lambda x: x % torch.tensor([0.0, 1.0, 1.0]),
    "div": lambda x: x / torch.tensor([0.0, 1.0, 1.0]),
    "layer_norm": lambda x: F.layer_norm(x, (3,), eps=0.0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_nan_is_not_undefined(name):
    for values in ([nan, 0.3, 0.4], [nan, nan, nan]):
        scale = torch.ones(3, requires_grad=True)
        with explain() as report:
            (ELEMENTWISE[name](torch.tensor(values))[:1] * scale).sum().backward()
        (origin,) = report
        assert (origin.kind, origin.operands) == ("bad input", "nan")


def test_what_is_undefined_beside_a_nan_is_told_of_with_its_own_number():
    report = report_of(lambda: leaf(nan, -1.0, 0.5).atanh().sum().backward())
    assert told(report) == [("bad input", "atanh"), ("undefined", "atanh")]
    assert report.origins[1].operands == "atanh(-1) = -inf" and report.origins[1].entries == [(1,)]


@pytest.mark.parametrize("where", [(1, 2), ...], ids=str)
@pytest.mark.parametrize("name", ["logdet", "inverse", "corrcoef"])
def test_a_matrix_with_nan_is_not_undefined(name, where):
    bad = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    bad[where] = nan
    bad.requires_grad_()
    with explain() as report:
        getattr(torch, name)(bad).sum().backward()
    assert {origin.kind for origin in report} == {"bad input"}


@pytest.mark.parametrize(("kind", "statistic"), [(nn.BatchNorm1d, "running_mean"), (nn.InstanceNorm1d, "running_var")])
def test_statistics_that_were_nan(kind, statistic):
    norm = kind(2, track_running_stats=True).eval()
    buffer = getattr(norm, statistic)
    buffer[1] = nan
    x = torch.rand(3, 2, 4, requires_grad=True)
    report = report_of(lambda: norm(x).sum().backward())
    assert told(report) == [("bad input", kind.__name__[:-6].lower() + "_norm")]
    assert report.origins[0].operands == f"nan in {statistic}, a buffer" and report.origins[0].entries == [(1,)]


def test_statistics_of_rows_that_the_loss_ignores():
    """The gradient is contaminated, and evaluation uses what the batch left."""
    norm, batch = nn.BatchNorm1d(2), torch.tensor([[1.0, nan], [2.0, 1.0]])
    with explain() as report:
        norm(batch)[:, 0].sum().backward()
        norm.eval()
        norm(torch.ones(2, 2)).sum().backward()
    assert told(report) == [("contaminated", "batch_norm"), ("bad input", "batch_norm")]
    assert len({origin.line for origin in report}) == 1


UPDATES = {
    "mul": lambda state, w: state.mul_(0.9).add_(w, alpha=0.1),
    "lerp": lambda state, w: state.lerp_(w, 0.1),
    "clamp": lambda state, w: state.clamp_(-1, 1),
    "_foreach_mul": lambda state, w: torch._foreach_mul_([torch.ones(2), state], 0.9),
}


@pytest.mark.parametrize("name", UPDATES)
def test_state_that_was_nan(name):
    state, weight = torch.tensor([1.0, nan]), leaf(1.0, 1.0)
    with explain() as report:
        with torch.no_grad():
            UPDATES[name](state, weight)
        (weight * state).sum().backward()
    (origin,) = report
    assert (origin.kind, origin.operator, origin.operands) == ("bad input", name, "nan in state")
    assert origin.entries == [(1,)]


@pytest.mark.parametrize(("before", "update"), [(2e38, lambda s: s.mul_(2)), (-1.0, lambda s: s.sqrt_())])
def test_state_that_was_finite_is_no_input(before, update):
    state, weight = torch.tensor([before]), leaf(1.0)
    with explain() as report:
        with torch.no_grad():
            update(state)
        (weight * state).sum().backward()
    assert [origin.kind for origin in report] != ["bad input"]


@pytest.fixture
def filled():
    """New memory holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled")
def test_memory_that_was_not_initialized():
    """The report names it where it is written over in part, and where it is read. It may be initialized later."""
    w = torch.ones(2, requires_grad=True)
    with explain() as report:
        layer, other = nn.Linear(2, 2), torch.empty(2)
        layer.load_state_dict({"weight": torch.full((2, 2), nan), "bias": torch.zeros(2)})
        other[0], other[1] = leaf(1.0)[0], 1.0
        (layer(torch.ones(3, 2)) * other).sum().backward()
    (origin,) = report
    assert origin.operands == "nan in weight, a parameter" and "loaded from" in origin.remedy
    with explain() as report:
        out = torch.empty(3)
        out[:2] = w
        out.sum().backward()
        cache = torch.empty(3, 2)
        cache[:2] = torch.ones(2, 2)
        (cache.T * w[:, None]).sum().backward()
    for origin, name, operator, lines in zip(report, ("out", "cache"), ("setitem", "mul"), (1, 2), strict=True):
        assert (origin.kind, origin.operator) == ("bad input", operator)
        assert origin.operands == f"nan in {name}, not initialized since empty in line {origin.line - lines}"
        assert "torch.empty leaves the memory as it is" in origin.remedy


@pytest.mark.parametrize("name, role", [("1.weight", "a parameter"), ("1.running_var", "a buffer")])
def test_what_was_loaded_is_named(name, role):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    published = {key: value.clone() for key, value in model.state_dict().items()}
    published[name][1] = torch.nan
    with explain() as report:
        model.load_state_dict(published)
        model(torch.ones(3, 2)).sum().backward()
    (origin,) = report
    assert (origin.kind, origin.operator, origin.operands) == ("bad input", "batch_norm", f"nan in {name}, {role}")
    assert ("named_parameters" if role == "a parameter" else "reset_running_stats") in origin.remedy


def test_a_parameter_that_is_read_by_a_view_is_named():
    layer = nn.Linear(2, 2)
    layer.weight.data.numpy()[0, 0] = nan
    x = leaf(1.0, 2.0)
    (origin,) = report_of(lambda: (x[None] @ layer.weight.T).sum().backward())
    assert origin.operands == "nan in weight, a parameter" and "named_parameters" in origin.remedy
    assert "row" not in origin.remedy  # of data


@pytest.mark.parametrize("bad, kind", [(nan, "bad input"), (-1.0, "undefined")])
def test_what_running_statistics_kept_is_said_of_them(bad, kind):
    """A batch whose loss nobody uses leaves its NaN in the statistics, and a later pass reads it there."""
    model = nn.Sequential(nn.BatchNorm1d(2))
    with explain() as report:
        rows = torch.tensor([[bad, 1.0], [1.0, 2.0]])
        model(rows.log() if kind == "undefined" else rows)
        model.eval()
        model(leaf(1.0, 2.0)[None]).sum().backward()
    (origin,) = report
    assert origin.kind == kind and origin.operands.endswith(", kept since in 0.running_mean")
    assert ("reset_running_stats" in origin.remedy) == (kind == "bad input")


@pytest.mark.parametrize(("layout", "recorded"), [("mkldnn", True), ("mkldnn", False), ("nested", True)])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_comes_out_of_a_tensor_that_cannot_be_read(layout, recorded):
    """Its numbers, and where they were made, are out of reach; the report says so, and names the line."""
    if layout == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn")
    x, w = torch.tensor([[3e38, 1.0]], requires_grad=recorded), leaf(1.0, 2.0)
    with explain() as report:
        if layout == "mkldnn":
            y = (x.to_mkldnn() + x.to_mkldnn()).to_dense()
        else:
            y = (torch.nested.as_nested_tensor([x]) * 2).to_padded_tensor(0.0)
        (y * w).sum().backward()
    (origin,) = report
    assert origin.kind == "bad input" and origin.source.startswith("y = (")
    assert origin.operands == f"inf out of a tensor of layout {layout}, which explain can't read"
    assert "check the tensor before this line" in origin.remedy and "w" in origin.reached
