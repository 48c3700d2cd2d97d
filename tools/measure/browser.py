"""A real browser that opens the built site, for the tests of the site, the PDF and the picture of the README."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..project import Problem

MODULES = Path("tests") / "site" / "node_modules"
"""The folder of the checkout into which `make browser` installs axe-core."""

VIEWS = {
    f"{name}, {scheme}": {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    for name, width in (("wide", 1280), ("narrow", 360))
    for scheme in ("light", "dark")
}

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def executable() -> str | None:
    """The path of the browser: `CHROME_PATH`, or a Chromium or Chrome on the path; None if there is none."""
    return os.environ.get("CHROME_PATH") or next(filter(None, map(shutil.which, _NAMES)), None)


def missing(root: Path) -> str:
    """What the browser's tests need and this machine lacks; empty if nothing is missing."""
    lacks = [] if executable() else ["Chromium"]
    lacks += ["axe-core"] if not (root / MODULES / "axe-core").is_dir() else []
    return f"not installed: {', '.join(lacks)}; `make browser` installs what is missing" if lacks else ""


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser object, while the block runs.

    Raises:
        Problem: if there is no browser.
    """
    if executable() is None:
        raise Problem("Chromium is not installed, and this command needs it: run `make browser` first")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container, root can run Chromium only without its sandbox. The browser opens only our own pages.
        # The browser resolves no other host name, so that a visit need not check each request before it is sent.
        alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox", alone])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A browser tab with one view of the site, which can't reach any other host.

    Attributes:
        page: Playwright's page.
        troubles: messages of the console, of scripts and of failed requests, since the last `open`.
        elsewhere: addresses on other hosts that the page requested, since the last `open`.
    """

    def __init__(self, browser: Any, address: str, **view: Any) -> None:
        self.address = address
        self.context = browser.new_context(**view)
        self.troubles: list[str] = []
        self.elsewhere: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("requestfailed", self._failed)

    def open(self, path: str) -> Any:
        """Open a page of the site.

        Wait until its scripts have run and, on the search page, until the search has ended.
        """
        self.troubles.clear()
        self.elsewhere.clear()
        response = self.page.goto(f"{self.address}/{path}")
        if "?q=" in path:
            self.page.locator("#found", has_text="“").wait_for()
        return response

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the browser left the page before this file arrived
            self.troubles.append(f"failed: {request.url}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *details: object) -> None:
        self.context.close()


def axe(visit: Visit, root: Path, within: str = "html") -> list[str]:
    """The findings of axe-core on the open page, or on some of its elements: a line for each rule and element."""
    # Evaluated instead of added as a script, because the pages' policy allows no script from other sources.
    visit.page.evaluate((root / MODULES / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    # Without `preload`, which would load the style sheets again, and check sound, of which the pages have none.
    found = visit.page.evaluate("within => axe.run(within, {resultTypes: ['violations'], preload: false})", within)
    return [
        f"{violation['id']}: {node['html'][:160]}" for violation in found["violations"] for node in violation["nodes"]
    ]


def weigh(visit: Visit, path: str) -> int:
    """The bytes that a first visit to a page transfers: compressed, and with headers."""
    session = visit.context.new_cdp_session(visit.page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    visit.open(path)
    session.detach()
    return round(sum(sizes))
