"""A browser on the site. Without one the tests that need it are skipped; with BROWSER_TESTS=required they fail."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scratch import ROOT

from tools.measure.browser import VIEWS, Visit, chromium, missing, served


# Not for the whole session: while it is open an event loop runs, in which others can't run theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    lacking = missing(ROOT)
    if lacking and os.environ.get("BROWSER_TESTS") == "required":
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)
    with chromium() as handle:
        yield handle


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with served(site) as base:
        yield base


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """A fresh wide tab in light colours."""
    with Visit(browser, address, **VIEWS["wide, light"]) as tab:
        yield tab


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Visit]:
    """A fresh narrow tab."""
    with Visit(browser, address, **VIEWS["narrow, light"]) as tab:
        yield tab
