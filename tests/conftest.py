"""What the tests of the tools and of the site share: this checkout's book, built once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from scratch import ROOT, Book, copied


@pytest.fixture
def by_rules_alone(monkeypatch):
    """Every derivative is followed operator by operator, also where plain PyTorch's own run would do."""
    from zero_or_nan.ignoring import passes
    from zero_or_nan.ignoring.careful import Pass

    monkeypatch.setattr(passes, "Pass", lambda *args, **facts: Pass(*args, **{**facts, "by_rules_alone": True}))


@pytest.fixture(scope="session")
def behind() -> list[str]:
    """The notebooks of this checkout that were out of step before any test could bring them in step."""
    from tools.project import Project
    from tools.steps.pair import out_of_step

    return [path.name for path in out_of_step(Project(ROOT))]


@pytest.fixture(scope="session")
def site(behind: list[str]) -> Path:
    """The site of this checkout, built as `make book` builds it."""
    done = subprocess.run(
        [sys.executable, "-m", "tools", "book"], cwd=ROOT, text=True, capture_output=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def facts(site: Path) -> list[dict[str, Any]]:
    """What the executed pages of this checkout claim, in their order."""
    from tools.project import Project
    from tools.steps.collect import statements
    from tools.steps.execute import cached

    found = cached(Project(ROOT)).items()
    return [fact for chapter, notebook in found for fact in statements(notebook, chapter.stem)]


@pytest.fixture
def checkout(site: Path, tmp_path: Path) -> Book:
    """This checkout's book in a folder of its own, with what is cached of it, but without its site."""
    return copied(ROOT, tmp_path / "checkout")


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, BeautifulSoup]:
    """Every HTML page that the book makes, by its path in the site."""
    from tools.project import Project

    project = Project(ROOT)
    paths = [*map(project.path, project.names), "genindex.html", "search.html"]
    return {path: BeautifulSoup((site / path).read_text(encoding="utf-8"), "html.parser") for path in paths}
