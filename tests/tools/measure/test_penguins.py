"""The measurement of missing data compares what it says, and its record holds what the page says of it."""

from pathlib import Path

import pytest
import torch
from scratch import ROOT

from tools.measure import penguins

FILE = Path(ROOT) / "src" / "helpers" / "penguins.csv"


@pytest.fixture(scope="module")
def birds():
    return penguins.read_birds(FILE)


@pytest.mark.parametrize("missing", ["targets", "inputs"])
def test_only_what_is_asked_for_is_removed_and_the_test_is_complete(birds, missing):
    data = penguins.split(birds, 0, missing, 0.3)
    untouched, touched = (data.inputs, data.targets) if missing == "targets" else (data.targets, data.inputs)
    assert len(data.inputs) == 244 and len(data.test_inputs) == penguins.TESTED
    assert untouched.isnan().sum() == 4 and 0.25 < touched.isnan().float().mean() < 0.36
    assert data.test_inputs.isfinite().all() and data.test_targets.isfinite().all()
    assert torch.equal(data.test_targets, penguins.split(birds, 0, missing, 0.3).test_targets)


@pytest.mark.parametrize("missing", ["targets", "inputs"])
def test_all_methods_begin_alike_and_ignoring_is_select_first(birds, missing):
    data = penguins.split(birds, 1, missing, 0.4)
    first = penguins.trained("select first", data, 1, steps=5).state_dict()
    ours = penguins.trained("ignoring", data, 1, steps=5).state_dict()
    assert all(torch.allclose(first[name], ours[name], atol=1e-5) for name in first)
    starts = {method: penguins.trained(method, data, 1, steps=0) for method in penguins.METHODS}
    outputs = [model(penguins.given(method, data.test_inputs)) for method, model in starts.items()]
    assert all(torch.allclose(outputs[0], output, atol=1e-6) for output in outputs)
    flagged, imputed = starts[penguins.FLAG](penguins.given(penguins.FLAG, data.inputs)), data.inputs.nan_to_num(0)
    assert torch.allclose(flagged, starts["ignoring"](imputed), atol=1e-6)
