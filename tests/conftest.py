"""What all tests share: one thread for PyTorch, and this checkout's book, built once.

With `pytest -n 2`, as in `make test`, two processes share the tests.
"""

import fcntl
import gc
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bs4 import BeautifulSoup
from scratch import ROOT, Book, copied

from tools.project import Project

# The tensors of tests are small: a second thread has nothing to win, and where processors are busy the first waits for
# it, many times as long as both compute. In the environment for the processes that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# For each kind of GPU that is not there, `torch.manual_seed` keeps the text of the whole stack. The stack of a test is
# deep, so a seed would take milliseconds, and some tests set thousands of them.
for absent in ("cuda", "xpu", "mtia"):
    if hasattr(getattr(torch, absent, None), "traceback"):
        getattr(torch, absent).traceback = SimpleNamespace(format_stack=list)


def leave_out() -> None:
    """Let the garbage collector leave out what is there by now.

    Otherwise each collection walks through all of it, and so does each report of `explain`, to find the user's modules.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """What is imported."""
    leave_out()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file leaves for others: the parsed pages of the site are a million objects."""
    if nextitem is None or nextitem.path != item.path:
        leave_out()


FIRST = ("tests/site/", "tests/installed/")
"""What begins first, in one process: these tests share a parsed copy of the site. The other process needs no site."""

SLOW = (
    "tests/installed",
    "tests/site",
    "tests/tools/steps",
    "tests/tools/versions",
    "tests/tools/test_",
    "tests/zero_or_nan/explain/test_devices.py::test_several_processes",
    "tests/zero_or_nan/ignoring/test_compiled.py::test_marks_outlast_the_compilers_cache",
    "tests/zero_or_nan/in_training/test_around_regions.py",
)
"""What builds books, prints one, installs something, starts processes that share tensors, or compiles many models.

So do tests with "inductor" in their names, or among their parameters: they wait for a compiler of C++.
"""
SLOW_FIXTURES = {"site", "results", "ran"}
"""The built site; what two processes that share tensors found; what pages or scripts printed."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the files, and what `make test-fast` leaves out, beside what is marked where it stands."""
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in FIRST])
    for item in items:
        slow = item.nodeid.startswith(SLOW) or "inductor" in item.nodeid
        if slow or SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Calls a function, whose result is JSON, in one of the processes that share the tests; the others wait for it."""
    if not hasattr(request.config, "workerinput"):
        return lambda name, function: function()
    shared = tmp_path_factory.getbasetemp().parent

    def called(name: str, function: Callable[[], Any]) -> Any:
        path = shared / f"{name}.json"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                path.write_text(json.dumps(function()), encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

    return called


@pytest.fixture(autouse=True)
def keeps_the_tracer() -> Iterator[None]:
    """A test that leaves no tracer behind takes it from coverage, and later tests would seem to run nothing."""
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before


@pytest.fixture(scope="module")
def quick_samples() -> Iterator[None]:
    """For PyTorch's samples of an operator, its database reads the whole stack: under pytest, that takes 40 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "stack", lambda *_: [])
        yield


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout without pages."""
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).touch()
    return Project(tmp_path)


@pytest.fixture
def by_rules_alone(monkeypatch):
    """Every derivative is followed operator by operator, also where plain PyTorch's own run would do."""
    from zero_or_nan.ignoring.engine import passes
    from zero_or_nan.ignoring.engine.masked_pass import Pass

    monkeypatch.setattr(passes, "Pass", lambda *args, **facts: Pass(*args, **{**facts, "by_rules_alone": True}))


@pytest.fixture(scope="session")
def behind(once: Callable[..., Any]) -> list[str]:
    """The notebooks of this checkout that were out of step before any test could bring them in step."""
    from tools.steps.pair import out_of_step

    return once("behind", lambda: [path.name for path in out_of_step(Project(ROOT))])


@pytest.fixture(scope="session")
def site(behind: list[str], once: Callable[..., Any]) -> Path:
    """The site of this checkout, built as `make book` builds it."""

    def build() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tools", "book"], cwd=ROOT, text=True, capture_output=True, timeout=500
        )
        return done.returncode, done.stdout + done.stderr

    status, said = once("site", build)
    assert status == 0, said
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def facts(site: Path) -> list[dict[str, Any]]:
    """What the executed pages of this checkout claim, in their order."""
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
    project = Project(ROOT)
    paths = [*map(project.path, project.names), "genindex.html", "search.html"]
    return {path: BeautifulSoup((site / path).read_text(encoding="utf-8"), "html.parser") for path in paths}
