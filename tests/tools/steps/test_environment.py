"""Outputs belong to one state of what pages import, and one set of versions."""

import platform
import shutil
from pathlib import Path

import pytest
from scratch import ROOT

from tools.project import Project
from tools.steps import execute
from tools.steps.execute import fingerprint


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / "results").mkdir()
    shutil.copy(Project(ROOT).claims, tmp_path / "results")
    return Project(tmp_path)


def test_the_same_state_has_the_same_fingerprint_wherever_it_lies(project):
    assert fingerprint(project) == fingerprint(Project(ROOT))


def test_whatever_pages_import_or_run_on_changes_the_fingerprint_and_nothing_else_does(project, monkeypatch):
    added = project.helpers / "more" / "table.json"
    changes = {
        "recorded results": lambda: project.claims.write_text("{}", encoding="utf-8"),  # pages show where they held
        "a helper": lambda: (project.helpers / "cases.py").write_text("", encoding="utf-8"),
        "an added file": lambda: (added.parent.mkdir(), added.touch()),
        "a name": lambda: added.rename(added.with_name("other.json")),
        "the device": lambda: monkeypatch.setenv("ZERO_OR_NAN_DEVICE", "cuda"),
        "the beginning of kernels": lambda: monkeypatch.setattr(execute, "STARTUP", ""),
        "Python": lambda: monkeypatch.setattr(platform, "python_version", lambda: "3.99.0"),
        "a package": lambda: monkeypatch.setattr(execute, "version", lambda name: "0.0.1"),
    }
    seen = [fingerprint(project)]
    for change in changes.values():
        change()
        seen.append(fingerprint(project))
    assert [name for name, before, now in zip(changes, seen, seen[1:], strict=False) if before == now] == []
    for written in ("zero_or_nan.egg-info/PKG-INFO", "helpers/__pycache__/cases.cpython-311.pyc"):
        path = project.source / written
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert fingerprint(project) == seen[-1]
