"""A cache belongs to one state of what pages import, and one set of versions."""

import os
import platform
import shutil
from pathlib import Path

import pytest
from scratch import ROOT

from tools.project import Project
from tools.steps import environment
from tools.steps.environment import cache_folder, fingerprint, forget_old_caches


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / "results").mkdir()
    shutil.copy(Project(ROOT).claims, tmp_path / "results")
    return Project(tmp_path)


def test_the_same_state_has_the_same_fingerprint_wherever_it_lies(project, tmp_path):
    assert fingerprint(project) == fingerprint(Project(ROOT))
    assert cache_folder(project) == tmp_path / "_build" / "cache" / fingerprint(project)


def edited(*path):
    def change(project, monkeypatch):
        with project.root.joinpath("src", *path).open("a", encoding="utf-8") as file:
            file.write("\n")

    return change


def another_version_of(package):
    def change(project, monkeypatch):
        real = environment.version
        monkeypatch.setattr(environment, "version", lambda name: "0.0.1" if name == package else real(name))

    return change


def added(*path):
    def change(project, monkeypatch):
        file = project.root.joinpath("src", *path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    return change


CHANGES = {
    # Pages show on which versions they were verified.
    "recorded results": (lambda project, _: project.claims.write_text("{}", encoding="utf-8"), True),
    "the device": (lambda _, monkeypatch: monkeypatch.setenv("ZERO_OR_NAN_DEVICE", "cuda"), True),
    "the beginning of kernels": (lambda _, monkeypatch: monkeypatch.setattr(environment, "STARTUP", ""), True),
    "Python": (lambda _, monkeypatch: monkeypatch.setattr(platform, "python_version", lambda: "3.99.0"), True),
    **{name: (another_version_of(name), True) for name in ("torch", "numpy", "matplotlib", "ipykernel", "ipython")},
    "a helper": (edited("helpers", "cases.py"), True),
    "the style": (edited("helpers", "style.css"), True),
    "the library": (edited("zero_or_nan", "ignoring", "__init__.py"), True),
    "an added file": (added("helpers", "data", "table.json"), True),
    "a name": (lambda project, _: (project.helpers / "cases.py").rename(project.helpers / "case.py"), True),
    "what an installation writes": (added("zero_or_nan.egg-info", "PKG-INFO"), False),
    "compiled files": (added("helpers", "data", "__pycache__", "cases.cpython-311.pyc"), False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_fingerprint(project, monkeypatch, what):
    change, matters = CHANGES[what]
    before = fingerprint(project)
    change(project, monkeypatch)
    assert (fingerprint(project) != before) is matters


def test_only_the_three_caches_used_last_are_kept(project):
    forget_old_caches(project)  # nothing was cached yet
    folders = [project.build / "cache" / name for name in "abcde"]
    for age, folder in zip([5, 1, 4, 2, 3], folders, strict=True):
        folder.mkdir(parents=True)
        (folder / "file").touch()
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    forget_old_caches(project)
    assert sorted(path.name for path in (project.build / "cache").iterdir()) == ["b", "d", "e"]
