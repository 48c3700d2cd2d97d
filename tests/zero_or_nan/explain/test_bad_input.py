"""Data that are not finite are named as such: not the mask beside them, not a function that has a pole elsewhere."""

from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from origins import report_of, telling
from tensors import leaf
from torch import nn

from zero_or_nan import explain

told = telling("kind", "operator")
MASK = torch.full((3, 3), -inf).triu(1)
MASKS = {
    "added": lambda s: (s + MASK).softmax(-1),
    "in place": lambda s: s.add_(MASK).softmax(-1),
    "filled": lambda s: s.masked_fill(MASK < 0, -inf).softmax(-1),
    "by hand": lambda s: (s + MASK).exp() / (s + MASK).exp().sum(-1, keepdim=True),
    "fused": lambda s: F.scaled_dot_product_attention(s, s, s, attn_mask=MASK),
}


@pytest.mark.parametrize("bad", [nan, inf, 1.0])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_beside_data(name, bad):
    x, weight = torch.rand(2, 3, 3), torch.eye(3, requires_grad=True)
    x[0, 0, 0] = bad
    report = report_of(lambda: MASKS[name](torch.matmul(x, weight) * 1).sum().backward())
    is_finite = weight.grad.isfinite().all()
    assert told(report) == ([] if is_finite else [("bad input", "matmul")]) and (bad == bad or not is_finite)


def test_an_infinity_is_told_of_beside_data():
    """If it goes on, or has become NaN."""
    weight, infinite, missing = leaf(0.0, 1.0), torch.tensor([-inf, 1.0]), torch.tensor([1.0, nan])
    report = report_of(lambda: (leaf(1.0, 1.0) * missing + infinite).sum().backward())
    assert told(report) == [("bad input", "mul"), ("bad input", "add")]
    with explain() as report:
        product = weight * infinite
        (product * missing).softmax(0).sum().backward()
    assert [origin.operands for origin in report] == ["-inf in infinite", "nan in missing"]


def test_what_is_undefined_beside_a_nan_is_told_of_with_its_own_number():
    report = report_of(lambda: leaf(nan, -1.0, 0.5).atanh().sum().backward())
    assert told(report) == [("bad input", "atanh"), ("undefined", "atanh")]
    assert report.origins[1].operands == "atanh(-1) = -inf" and report.origins[1].entries == [(1,)]


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


def test_a_mask_with_the_wrong_sign_is_at_fault_and_not_the_softmax(program):
    lines = "s = x.masked_fill(torch.tensor([True, False]), {}torch.inf)\nloss = s.softmax(0)[1]"
    (origin,) = program.origins([1.0, 2.0], lines.format(""))
    assert (origin.kind, origin.operator, origin.line) == ("bad input", "masked_fill", 4), origin
    assert not program.origins([1.0, 2.0], lines.format("-"))
