"""The measurement of missing data compares what it says, and its record holds what the page says of it."""

import math
import statistics
from pathlib import Path

import pytest
import torch
from scratch import ROOT

from tools.measure import penguins
from tools.project import Project, read_record

FILE = Path(ROOT) / "src" / "helpers" / "penguins.csv"
STUDENT = 2.262
"""The quantile of 97.5 % of Student's distribution, for ten seeds."""


@pytest.fixture(scope="module")
def birds():
    return penguins.read_birds(FILE)


@pytest.fixture(scope="module")
def record():
    return read_record(Project(ROOT).results / "measured" / "penguins.json")


def errors(record, missing, share, method):
    (row,) = [r for r in record["rows"] if (r["missing"], r["share"], r["method"]) == (missing, share, method)]
    return row["errors"]


def differences(record, missing, share, one, other):
    pairs = zip(errors(record, missing, share, one), errors(record, missing, share, other), strict=True)
    return [a - b for a, b in pairs]


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
    starts = [penguins.trained(method, data, 1, steps=0) for method in penguins.METHODS]
    outputs = [model(data.test_inputs) for model in starts]
    assert all(torch.allclose(outputs[0], output, atol=1e-6) for output in outputs)


def test_what_the_page_says_of_the_record(record):
    """Sentences of the page, in its order."""

    def seen(missing, share, one, other):
        found = differences(record, missing, share, one, other)
        mean = statistics.mean(found)
        return mean if abs(mean) > STUDENT * statistics.stdev(found) / math.sqrt(len(found)) else 0

    for missing in ("targets", "inputs"):
        for share in penguins.SHARES:
            assert all(abs(each) < 5e-3 for each in differences(record, missing, share, "ignoring", "select first"))
    for share in penguins.SHARES[:5]:  # to 40 %
        assert abs(statistics.mean(differences(record, "targets", share, "ignoring", "drop rows"))) < 0.01
    assert all(seen("targets", share, "ignoring", "drop rows") < -0.03 for share in penguins.SHARES[5:])
    assert all(seen("targets", share, "impute the mean", "drop rows") > 0.02 for share in penguins.SHARES[2:])
    for share in penguins.SHARES:
        assert all(abs(each) < 5e-3 for each in differences(record, "inputs", share, "ignoring", "drop rows"))
        assert not seen("inputs", share, "impute the mean", "drop rows")
        assert not seen("inputs", share, "impute and flag", "drop rows")
