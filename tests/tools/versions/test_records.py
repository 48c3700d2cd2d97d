"""Reports become records: each in the place of its release, and nothing else is taken for one."""

import json

import pytest

from tools.project import Problem
from tools.versions.records import record
from zero_or_nan.selfcheck.records import Records


class Checkout:
    """A project as far as it is needed: a folder with sources."""

    def __init__(self, root):
        self.root, self.source = root, root / "src"
        self.recorded = self.source / "zero_or_nan" / "selfcheck" / "recorded.json"
        self.recorded.parent.mkdir(parents=True)
        tables = {
            "2.6": {"a": ("contaminated", "right"), "gone": ("right", "right")},
            "2.13": {"a": ("right", "right")},
        }
        self.recorded.write_text(Records(tables).json())

    @property
    def tables(self):
        return Records.from_json(self.recorded.read_text()).tables


def report(path, version="2.6.1+cu124", device="cpu", left_out=None):
    row = {"name": "a", "plain": "wrong", "ignoring": "right"}
    content = {
        "versions": {"torch": version},
        "device": {"type": device},
        "cases": [row],
        "operators": [row | {"name": "b"}],
        "operators_left_out": left_out,
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_a_report_replaces_what_its_release_had_and_nothing_else(checkout, tmp_path, capsys):
    record(checkout, [report(tmp_path / "report.json"), report(tmp_path / "newer.json", "2.16.0")])
    new = {"a": ("wrong", "right"), "b": ("wrong", "right")}
    assert checkout.tables == {"2.6": new, "2.13": {"a": ("right", "right")}, "2.16": new}
    assert "2.6, 2.13, 2.16" in capsys.readouterr().out


@pytest.mark.parametrize(
    "other, told",
    [
        ({"version": "2.16.0.dev20261101"}, "a nightly build"),
        ({"device": "cuda"}, "--device cpu"),
        ({"left_out": "it needs numpy"}, "it needs numpy"),
    ],
)
def test_what_is_not_to_be_recorded_is_refused(checkout, tmp_path, other, told):
    before = checkout.tables
    with pytest.raises(Problem, match=told):
        record(checkout, [report(tmp_path / "good.json"), report(tmp_path / "report.json", **other)])
    assert checkout.tables == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"versions": 1}'])
def test_another_file_is_refused_by_name(checkout, tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(Problem, match="other.json is not what python -m zero_or_nan.selfcheck --json prints"):
        record(checkout, [tmp_path / "other.json", tmp_path / "missing.json"])
