"""Tests of other projects: what is counted, what the plugin replaces, and what is recorded."""

import json
import os
import subprocess
import sys
import tarfile

import pytest
from scratch import ROOT

from tools.project import Project
from tools.versions import isolated, peers
from tools.versions.isolated import Isolated
from tools.versions.peers import Peer, compared

FOREIGN = """
import warnings, pytest, torch
from torch.autograd import grad
import missing_or_not

def loss(x):
    return torch.where(x < 50, x.exp(), 0).sum()

X = [1.0, 100.0]

def test_grad():
    x = torch.tensor(X, requires_grad=True)
    assert grad(loss(x), x)[0].isfinite().all()

def test_backward():
    x = torch.tensor(X, requires_grad=True)
    loss(x).backward()
    assert x.grad.isfinite().all()

def test_warns():
    warnings.warn("ignoring could not follow foo (no rule): from there on the gradient is plain PyTorch's")
    warnings.warn("something else")

def test_fails():
    assert 1 == 2

@pytest.mark.skip
def test_skipped(): pass

@pytest.fixture
def broken(): yield; raise ValueError("at the end")

def test_broken(broken): pass
"""


def test_the_plugin_replaces_the_functions_and_writes_down_what_became_of_each_test(tmp_path):
    (tmp_path / "test_one.py").write_text(FOREIGN.replace("import missing_or_not\n", ""))
    (tmp_path / "test_two.py").write_text(FOREIGN)  # it can't be imported
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    own = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tools' / 'versions'}", "PEERS_KIND": "ignoring"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", peers.PLUGIN, "--continue-on-collection-errors"]
    variables = {**os.environ, **own, "PEERS_OUT": str(tmp_path / "out.json")}
    subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True)
    outcomes = json.loads((tmp_path / "out.json").read_text())["tests"]
    found = {name.partition("::test_")[2] or name: (test["outcome"], test["calls"]) for name, test in outcomes.items()}
    assert found == {
        "grad": ("passed", 1), "backward": ("passed", 1), "warns": ("passed", 0), "fails": ("failed", 0),
        "broken": ("failed", 0), "test_two.py": ("failed", 0), "skipped": ("skipped", 0),
    }  # fmt: skip
    assert outcomes["test_one.py::test_broken"]["said"] == "ValueError: at the end"
    assert "No module named 'missing_or_not'" in outcomes["test_two.py"]["said"]
    assert outcomes["test_one.py::test_warns"]["warnings"] == ["ignoring could not follow foo (no rule)"]


def became(**words):
    return {name: {"outcome": word, "said": f"of {name}", "warnings": ["w", "w"], "calls": 2}
            for name, word in words.items()}  # fmt: skip


def test_tests_count_that_pass_in_both_plain_runs():
    plain = became(a="passed", b="passed", c="passed", once="passed", never="failed", skip="skipped")
    again = became(a="passed", b="passed", c="passed", once="failed", never="failed", skip="skipped")
    ours = became(a="passed", b="failed", once="failed", never="failed", skip="skipped")
    assert compared(plain, again, ours) == {
        "passed": 3, "differentiating": 2, "failed": {"b": "of b", "c": "not run"}, "warnings": {"w": 2},
        "unsteady": ["once"], "failed_plainly": 1,
    }  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout of a few files, and packages whose tests were run already; `wrong` has none that passes."""
    for name in ("_config.yml", "_toc.yml", "src/zero_or_nan/a.py", "tools/versions/peers_plugin.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    pins = ("torch", "numpy", "pytest", "pytest-timeout", "sphinx")
    (tmp_path / "requirements.txt").write_text("".join(f"{name}==1.0\n" for name in pins))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(isolated, "DISK", 0)
    monkeypatch.setattr(
        peers, "PEERS", tuple(Peer(name, "1.0", ("test",), ("scipy",)) for name in ("one", "two", "wrong"))
    )
    return Project(tmp_path)


@pytest.fixture
def ran(monkeypatch):
    """The names of the packages whose tests ran."""
    names = []

    def tested(peer, environment, ours, kind):
        names.append(peer.name)
        word = "failed" if peer.name == "wrong" else "passed"
        return {"versions": {"torch": "1.0", "python": "3"}, "tests": became(a=word)}

    monkeypatch.setattr(peers, "install", lambda project, peer, environment: environment.folder.mkdir())
    monkeypatch.setattr(Isolated, "last_words", lambda environment: "the last words")
    monkeypatch.setattr(peers, "tested", tested)
    return names


def test_without_a_test_that_passes_nothing_is_recorded_and_the_rest_is_not_run_again(project, ran, capsys):
    for _ in range(2):
        assert peers.peers(project) == 1
    assert ran == [*["one"] * 3, *["two"] * 3, *["wrong"] * 6]
    assert "failed: wrong. Their logs are in" in capsys.readouterr().err
    assert not project.results.exists()
    (project.root / "src" / "zero_or_nan" / "a.py").write_text("1")
    assert peers.peers(project, "one") == 0 and ran.count("one") == 6


def test_a_package_is_installed_from_its_sources_and_torch_stays_pinned(project, monkeypatch):
    commands = []

    def run(self, command, folder, **variables):
        commands.append(" ".join(command))
        if "download" in command:
            (folder / "one-1.0").mkdir()
            with tarfile.open(folder / "one-1.0.tar.gz", "w:gz") as packed:
                packed.add(folder / "one-1.0", "one-1.0")
        return 0

    monkeypatch.setattr(Isolated, "run", run)
    one = Isolated("one", project.build / "one", project.build / "one.log")
    one.folder.mkdir(parents=True)
    peers.install(project, peers.PEERS[0], one)
    pins = (one.folder / "pins.txt").read_text().split()
    assert pins == ["torch==1.0", "numpy==1.0", "pytest==1.0", "pytest-timeout==1.0"]
    assert f"-r {one.folder / 'pins.txt'} scipy" in commands[1]
    assert "--no-binary one" in commands[2] and commands[3].endswith("pins.txt ./package")
    assert (one.folder / "package").is_dir()
