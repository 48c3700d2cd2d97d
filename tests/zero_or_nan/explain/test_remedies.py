"""What a report says is to be done: it runs, it helps, and the section about it is there."""

import re

import pytest
import torch
from tensors import leaf

from zero_or_nan import ignoring
from zero_or_nan.explain.remedies import CONTAMINATED, PAGES, REMEDIES, remedy

KINDS = [*REMEDIES, *(("contaminated", operator) for operator in [*CONTAMINATED, "something else"])]


@pytest.mark.parametrize(("kind", "operator"), KINDS)
@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_fits_a_notebook_and_leads_to_a_section_that_is_there(kind, operator, dtype, mended, request):
    code, address = remedy(kind, operator, dtype, mended)
    assert all(len(line) <= 78 for line in code.splitlines())
    page, _, anchor = address.removeprefix(PAGES).partition(".html#")
    text = (request.config.rootpath / "chapters" / f"{page}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text), flags=re.MULTILINE)
    assert anchor in [re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings]


def situations():
    """For each remedy the names that its lines use, where things went wrong."""
    x = leaf(0.0, 4.0)
    yield "contaminated", "", "float32", True, {"x": x, "loss": torch.where(x > 0, x.log(), 0).sum()}
    x = leaf(0.0, 4.0)
    yield "contaminated", "", "float32", False, {"x": x, "used": x > 0, "f": torch.log}
    x = leaf(0.0, 4.0)
    yield "undefined", "", "float32", None, {"x": x, "y": x.log()}
    for operator in ("log", "sqrt", "pow", "std", "var"):
        x = leaf(0.0) if operator in ("std", "var") else leaf(0.0, 4.0)
        yield "undefined", operator, "float32", None, {"x": x, "p": 0.5}
    yield "undefined", "norm", "float32", None, {"x": torch.zeros(2, 3, requires_grad=True)}
    yield "undefined", "acos", "float32", None, {"x": leaf(-1.0, 0.0, 1.0)}
    a, b, total = leaf(1.0, 1.0), leaf(0.0, 2.0), leaf(0.0)
    yield "undefined", "div", "float32", None, {"x": a, "a": a, "b": b, "total": total, "count": torch.tensor([0])}
    x = torch.zeros(2, 2, requires_grad=True)
    allowed = torch.tensor([[True, False], [False, False]])
    yield "undefined", "softmax", "float32", None, {"x": x, "scores": x * 1, "allowed": allowed}
    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    model = torch.nn.ParameterList([x])
    yield "undefined", "step", "float16", None, {"x": x, "model": model, "loss": (x * 0).sum(), "steps": True}
    model = torch.nn.ParameterList([leaf(1.0, 1.0)])
    model[0].grad = torch.full((2,), 1e30)
    yield "overflow", "step", "float32", None, {"x": model[0], "model": model, "y": model[0] * 1}
    yield "overflow", "", "float32", None, {"x": leaf(100.0), "f": lambda x: x.exp().log()}
    yield "overflow", "exp", "float32", None, {"x": leaf(100.0, 1.0)}
    x = leaf(12.0, dtype=torch.float16)
    yield "overflow", "exp", "float16", None, {"x": x, "f": lambda x: x.exp().log(), "device_type": "cpu"}
    x = torch.tensor([[1.0, torch.nan], [1.0, 2.0]], requires_grad=True)
    yield "bad input", "", "float32", None, {"x": x, "per_row": x.square().sum(-1)}
    x = leaf(1.0, 2.0)
    x.grad = torch.tensor([torch.nan, 1.0])
    yield "bad input", "zero_grad", "float32", None, {"x": x, "loss": x.sum(), "optimizer": torch.optim.SGD([x])}


@pytest.mark.parametrize(
    ("kind", "operator", "dtype", "mended", "names"),
    list(situations()),
    ids=[f"{kind}-{operator}-{dtype}-{mended}" for kind, operator, dtype, mended, _ in situations()],
)
def test_its_lines_run_and_then_the_gradient_is_finite(kind, operator, dtype, mended, names):
    code, _ = remedy(kind, operator, dtype, mended)
    session = {"torch": torch, "ignoring": ignoring, **names}
    exec(compile(code, "remedy", "exec"), session)
    if session["x"].grad is None:
        result = next(session[name] for name in ("weights", "loss", "y") if name in session)
        assert result.isfinite().all()
        ignoring.backward(result.sum())
    assert names["x"].grad is None or names["x"].grad.isfinite().all()
    if "steps" in names:
        session["optimizer"].step()
        assert names["x"].isfinite().all()


def test_each_remedy_was_tried():
    tried = {(kind, operator) for kind, operator, *_ in situations()}
    assert set(REMEDIES) <= tried


def test_the_one_without_an_operator_is_for_all_others():
    assert remedy("undefined", "atan2", "float32", None) == remedy("undefined", "", "float32", None)
    assert remedy("undefined", "sqrt", "float32", None) != remedy("undefined", "", "float32", None)
