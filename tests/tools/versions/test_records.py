"""Reports become records: each in the place of its release, and nothing else is taken for one."""

import json

import pytest

from tools.project import Problem
from tools.versions.records import record
from zero_or_nan.selfcheck.records import Records


@pytest.fixture
def recorded(project):
    """The file of records, which has two releases."""
    path = project.source / "zero_or_nan" / "selfcheck" / "recorded.json"
    path.parent.mkdir(parents=True)
    old = {"a": ("contaminated", "right"), "gone": ("right", "right")}
    path.write_text(Records({"2.6": old, "2.13": {"a": ("right", "right")}}).json())
    return path


def tables(recorded):
    return Records.from_json(recorded.read_text()).tables


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


def test_a_report_replaces_what_its_release_had_and_nothing_else(project, recorded, tmp_path, capsys):
    record(project, [report(tmp_path / "report.json"), report(tmp_path / "newer.json", "2.16.0")])
    new = {"a": ("wrong", "right"), "b": ("wrong", "right")}
    assert tables(recorded) == {"2.6": new, "2.13": {"a": ("right", "right")}, "2.16": new}
    assert "2.6, 2.13, 2.16" in capsys.readouterr().out


@pytest.mark.parametrize(
    "other, told",
    [
        ({"version": "2.16.0.dev20261101"}, "a nightly build"),
        ({"device": "cuda"}, "--device cpu"),
        ({"left_out": "it needs numpy"}, "it needs numpy"),
    ],
)
def test_what_is_not_to_be_recorded_is_refused(project, recorded, tmp_path, other, told):
    before = tables(recorded)
    with pytest.raises(Problem, match=told):
        record(project, [report(tmp_path / "good.json"), report(tmp_path / "report.json", **other)])
    assert tables(recorded) == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"versions": 1}'])
def test_another_file_is_refused_by_name(project, recorded, tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(Problem, match="other.json is not what python -m zero_or_nan.selfcheck --json prints"):
        record(project, [tmp_path / "other.json", tmp_path / "missing.json"])
