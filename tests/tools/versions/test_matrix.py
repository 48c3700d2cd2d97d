"""The matrix on made-up versions: what it asks for before it starts, what it reports, and where it goes on."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tools.project import Problem, Project, write_record
from tools.versions import isolated, matrix
from tools.versions.isolated import Failed, Isolated
from tools.versions.matrix import write_pins

PINS = """\
filelock==1.0
    # via
    #   huggingface-hub
    #   torch
numpy==2.0
    # via zero-or-nan (pyproject.toml)
setuptools==80.0
    # via torch
sympy==1.14.0
    # via torch
torch==2.13.0
    # via zero-or-nan (pyproject.toml)
"""
ROW = {"page": "p", "type": "claim", "case": "4132", "method": "vanilla", "quantity": "x.grad",
       "expected": "int64[]: 1", "observed": "int64[]: 1", "tolerance": "exactly", "holds": True}  # fmt: skip
CLAIMS = f"""
import json, pathlib, sys
version = pathlib.Path.cwd().parent.name.removeprefix("of-")
pathlib.Path("../../started-" + version).touch()
path = pathlib.Path("results/claims.json")
path.parent.mkdir()
fact = {ROW!r}
if version == "2.7.0":
    fact |= {{"holds": False, "observed": "int64[]: 2"}}
runs = {{f"{{version}} cpu": {{"python": "3.11.7", "machine": "x86_64"}}}}
path.write_text(json.dumps({{"runs": runs, "outcomes": [fact]}}))
print("the last words")
sys.exit(version == "2.7.0")
"""
TESTS = """
import json, pathlib
pathlib.Path("_build").mkdir()
setup = {"setup": "AMP", "code": "x", "holds_on": [pathlib.Path.cwd().parent.name.removeprefix("of-")]}
found = {"passed": 3, "skipped": 1, "failed": [], "setups": [setup]}
pathlib.Path("_build/library-tests.json").write_text(json.dumps(found))
"""
SAMPLES = {"samples": 2, "contaminated": 2, "fixed": 2, "broken": 0, "other_bits": 0, "crashed": []}
FIXED = f"import json, pathlib; pathlib.Path('_build/fixed.json').write_text(json.dumps({SAMPLES!r}))"
MASKED = """
import json, pathlib
version = pathlib.Path.cwd().parent.name.removeprefix("of-")
outcomes = {"x.exp()": ["works", "works"], "x.relu()": ["TypeError", ""]}
rows = [{"operator": code, "forward": pair[0], "backward": pair[1]} for code, pair in outcomes.items()]
pathlib.Path("results/measured").mkdir()
pathlib.Path("results/measured/masked.json").write_text(json.dumps({"releases": [version], "rows": rows}))
"""
GOOD = {
    "tests": {"passed": 3, "skipped": 1, "failed": []},
    "fixed": SAMPLES,
    "masked": {"works": 1, "of": 2},
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout of a few files, and environments whose Python is this one."""
    for name in ("_config.yml", "_toc.yml", "pyproject.toml", "src/a.py", "chapters/one.md", "tests/test_a.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    (tmp_path / "requirements.txt").write_text(PINS, encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    setups = tmp_path / "results" / "measured" / "setups.json"
    setups.parent.mkdir(parents=True)
    rows = [{"setup": "AMP", "code": "x", "holds_on": ["2.13.0", "2.5.0"], "not_run": ""}]
    write_record(setups, {"rows": rows})
    monkeypatch.setattr(matrix, "_COPIED", ("_config.yml", "pyproject.toml", "chapters", "src", "tests"))
    programs = {"claims": CLAIMS, "tests": TESTS, "fixed": FIXED, "masked": MASKED}
    for part, program in programs.items():
        monkeypatch.setitem(matrix.PARTS, part, (("-c", program), matrix.PARTS[part][1]))
    monkeypatch.setattr(Isolated, "install", installed)
    monkeypatch.setattr(
        isolated, "DISK", 1
    )  # nothing is installed, so the tests also pass on a disk that is almost full
    return Project(tmp_path)


def installed(environment, *packages):
    if "torch==2.99.0" in packages:
        raise Failed("ERROR: No matching distribution found for torch==2.99.0")
    environment.python.parent.mkdir(parents=True)
    os.symlink(sys.executable, environment.python)


def rows(project):
    path = project.results / "measured" / "matrix.json"
    return {row["torch"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def started(project):
    return sorted(path.name.removeprefix("started-") for path in (project.build / "matrix").glob("started-*"))


def test_every_version_is_run_recorded_and_cleaned_up(project, capsys):
    assert matrix.matrix(project, "2.15.0", "2.6.0") == 0
    assert list(rows(project)) == ["2.6.0", "2.15.0"]
    assert rows(project)["2.6.0"] == {
        "torch": "2.6.0",
        "claims": {"held": 1, "of": 1},
        **GOOD,
    }
    recorded = json.loads(project.claims.read_text(encoding="utf-8"))
    assert list(recorded["runs"]) == ["2.6.0 cpu", "2.15.0 cpu"] and recorded["outcomes"] == [ROW]
    setups = json.loads((project.results / "measured" / "setups.json").read_text(encoding="utf-8"))["rows"]
    assert setups[0]["holds_on"] == ["2.5.0", "2.6.0", "2.13.0", "2.15.0"]
    masked = json.loads((project.results / "measured" / "masked.json").read_text(encoding="utf-8"))
    assert masked["releases"] == ["2.6.0", "2.15.0"]
    assert masked["rows"][1] == {"operator": "x.relu()", "forward": "TypeError", "backward": ""}
    assert not (project.build / "matrix").exists()
    said = capsys.readouterr().out
    assert "running 2 of 2" in said and "2.6.0  claims: 1 of 1 hold" in said
    assert said.splitlines()[-1] == "2 of 2 versions: no failure"


def test_what_is_not_as_it_should_be_is_told_and_the_rest_is_done(project, capsys):
    assert matrix.matrix(project, "2.6.0", "2.7.0", "2.99.0") == 1
    found = rows(project)
    assert found["2.7.0"]["claims"] == {"held": 0, "of": 1, "error": "the last words"}
    assert found["2.99.0"] == {"torch": "2.99.0", "error": "ERROR: No matching distribution found for torch==2.99.0"}
    assert found["2.6.0"]["tests"] == GOOD["tests"]
    captured = capsys.readouterr()
    assert "1 of 3 versions: no failure" in captured.out
    assert captured.err.startswith("failed: 2.7.0, 2.99.0. Their logs are in")
    assert "the last words" in (project.build / "matrix" / "2.7.0.log").read_text(encoding="utf-8")
    assert not list((project.build / "matrix").glob("of-*"))

    # The same command does those again, and no other.
    for path in (project.build / "matrix").glob("started-*"):
        path.unlink()
    assert matrix.matrix(project, "2.6.0", "2.7.0", "2.99.0") == 1
    assert started(project) == ["2.7.0"]
    assert "running 2 of 3\n" in capsys.readouterr().out

    # After an edit all are done again.
    (project.root / "src" / "a.py").write_text("1", encoding="utf-8")
    assert matrix.matrix(project, "2.6.0", "2.7.0") == 1
    assert started(project) == ["2.6.0", "2.7.0"]


@pytest.mark.parametrize(
    ("part", "figure"), [("tests", {"failed": ["a"]}), ("fixed", {"broken": 1}), ("fixed", {"crashed": ["mm"]}),
                         ("fixed", {"other_bits": 1})],
)  # fmt: skip
def test_what_a_part_must_not_find_is_a_failure(project, part, figure):
    good = {"torch": "2.6.0", "claims": {"held": 1, "of": 1}, **GOOD}
    assert matrix._good(good)
    assert not matrix._good({**good, part: {**good[part], **figure}})
    assert not matrix._good({key: value for key, value in good.items() if key != part})


def test_the_pins_leave_out_torch_and_what_only_torch_wants(project, tmp_path):
    path = write_pins(project, tmp_path / "pins.txt")
    assert path.read_text(encoding="utf-8") == "filelock==1.0\nnumpy==2.0\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_and_goes_on_afterwards(project, monkeypatch, how):
    def interrupted(project, version, environment):
        environment.folder.mkdir()
        signal.raise_signal(how)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(matrix, "run", interrupted)
        matrix.matrix(project, "2.6.0", "2.7.0")
    assert not list((project.build / "matrix").glob("of-*"))
    (project.build / "matrix" / "of-2.6.0").mkdir()  # what a run leaves that is killed
    assert matrix.matrix(project, "2.6.0") == 0
    assert not (project.build / "matrix").exists()


def test_without_room_on_the_disk_and_for_what_is_no_version_nothing_is_begun(project, monkeypatch):
    for version in ("2.9", "2.9.1+cpu", "../2.9.1"):
        with pytest.raises(Problem, match="not a version of PyTorch"):
            matrix.matrix(project, "2.6.0", version)
    monkeypatch.setattr(isolated, "DISK", 2**60)
    with pytest.raises(Problem, match="GiB free, but an environment needs up to"):
        matrix.matrix(project, "2.6.0")
    assert started(project) == []
