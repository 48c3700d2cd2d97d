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


def test_the_results_of_another_version_change_it(project):
    # Pages show on which versions they were verified.
    before = fingerprint(project)
    project.claims.write_text("{}", encoding="utf-8")
    assert fingerprint(project) != before


def test_the_device_changes_it(project, monkeypatch):
    before = fingerprint(project)
    monkeypatch.setenv("ZERO_OR_NAN_DEVICE", "cuda")
    assert fingerprint(project) != before


@pytest.mark.parametrize("name", ["cases.py", "style.css", "__init__.py"])
def test_an_edited_helper_changes_it(project, name):
    before = fingerprint(project)
    with (project.helpers / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert fingerprint(project) != before


def test_an_edited_library_changes_it(project):
    before = fingerprint(project)
    with (project.source / "zero_or_nan" / "ignoring" / "passes.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert fingerprint(project) != before


def test_another_beginning_of_kernels_changes_it(project, monkeypatch):
    before = fingerprint(project)
    monkeypatch.setattr(environment, "STARTUP", "")
    assert fingerprint(project) != before


def test_what_an_installation_writes_beside_them_does_not_change_it(project):
    before = fingerprint(project)
    (project.source / "zero_or_nan.egg-info").mkdir()
    (project.source / "zero_or_nan.egg-info" / "PKG-INFO").touch()
    assert fingerprint(project) == before


@pytest.mark.parametrize("name", ["new.py", "data/table.json"])
def test_an_added_helper_changes_it_and_a_removed_one_changes_it_back(project, name):
    before = fingerprint(project)
    path = project.helpers / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert fingerprint(project) != before
    path.unlink()
    assert fingerprint(project) == before


def test_a_renamed_helper_changes_it(project):
    before = fingerprint(project)
    (project.helpers / "cases.py").rename(project.helpers / "case.py")
    assert fingerprint(project) != before


def test_compiled_files_do_not_change_it(project):
    before = fingerprint(project)
    for folder in (project.helpers / "__pycache__", project.helpers / "data" / "__pycache__"):
        folder.mkdir(parents=True)
        (folder / "cases.cpython-311.pyc").write_bytes(b"\0")
    assert fingerprint(project) == before


@pytest.mark.parametrize("package", ["torch", "numpy", "matplotlib", "ipykernel", "ipython"])
def test_another_version_of_a_package_changes_it(project, monkeypatch, package):
    before = fingerprint(project)
    real = environment.version
    monkeypatch.setattr(environment, "version", lambda name: "0.0.1" if name == package else real(name))
    assert fingerprint(project) != before


def test_another_python_changes_it(project, monkeypatch):
    before = fingerprint(project)
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    assert fingerprint(project) != before


def test_only_the_three_caches_used_last_are_kept(project):
    folders = [project.build / "cache" / name for name in "abcde"]
    for age, folder in zip([5, 1, 4, 2, 3], folders, strict=True):
        folder.mkdir(parents=True)
        (folder / "file").touch()
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    forget_old_caches(project)
    assert sorted(path.name for path in (project.build / "cache").iterdir()) == ["b", "d", "e"]
    forget_old_caches(project)
    assert sorted(path.name for path in (project.build / "cache").iterdir()) == ["b", "d", "e"]


def test_forgetting_where_nothing_was_cached_is_no_error(project):
    forget_old_caches(project)
