"""A real browser that opens the built site, for the tests of the site and the picture of the README."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..project import Problem, Project

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


def built(project: Project) -> Path:
    """The folder of the built site.

    Raises:
        Problem: if the site is not built.
    """
    if not (project.site / "index.html").is_file():
        raise Problem("the site is not built yet: run `make book` first")
    return project.site


class _Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder as GitHub Pages does: a missing file gives `404.html`."""

    def send_head(self) -> Any:
        del self.headers["If-Modified-Since"]  # each visit gets whole files, which can be weighed
        return super().send_head()

    def send_error(self, code: int, *args: Any) -> None:
        content = Path(self.directory, "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Print nothing, because the browser shows which files it could not load."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine alone, while the block runs, and give the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site))) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a browser may close a connection early
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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
        # Without a GPU, a process for one would only cost time.
        options = ["--no-sandbox", alone, "--disable-gpu", "--in-process-gpu"]
        # Playwright switches the cache off from which a reader's browser shows a page again on the way back.
        other = ["--disable-back-forward-cache"]
        browser = playwright.chromium.launch(executable_path=executable(), args=options, ignore_default_args=other)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A browser tab with one view of the site, which can't reach any other host.

    Attributes:
        page: Playwright's page.
        troubles: messages of the console, of scripts and of failed requests, since the last `open`.
        requests: all that the page requested, since the last `open`.
        elsewhere: the addresses on other hosts among them.
    """

    def __init__(self, browser: Any, address: str, **view: Any) -> None:
        self.address = address
        self.context = browser.new_context(**view)
        self.troubles: list[str] = []
        self.requests: list[Any] = []
        self.page = self.context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("requestfailed", self._failed)

    def open(self, path: str) -> Any:
        """Open a page of the site.

        Wait until its scripts have run and, on the search page, until the search has ended.
        """
        self.troubles.clear()
        self.requests.clear()
        response = self.page.goto(f"{self.address}/{path}")
        if "?q=" in path:
            self.page.locator("#found", has_text="“").wait_for()
        return response

    def show(self, viewport: Any, color_scheme: Any) -> None:
        """Show the open page, and those opened later, in another view."""
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(color_scheme=color_scheme)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the browser left the page before this file arrived
            self.troubles.append(f"failed: {request.url}")

    @property
    def elsewhere(self) -> list[str]:
        own = (self.address, "data:", "blob:")
        return [request.url for request in self.requests if not request.url.startswith(own)]

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *details: object) -> None:
        self.context.close()


def axe(visit: Visit, root: Path, colours: bool = True) -> list[str]:
    """The findings of axe-core on the open page: a line for each rule and element.

    Without `colours`, the two rules about the colours of text and of links are left out, which take most of the time.
    """
    # Evaluated instead of added as a script, because the pages' policy allows no script from other sources.
    visit.page.evaluate((root / MODULES / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    # Without `preload`, which would load the style sheets again, and check sound, of which the pages have none.
    rules = dict.fromkeys(("color-contrast", "link-in-text-block"), {"enabled": colours})
    options = {"resultTypes": ["violations"], "preload": False, "rules": rules}
    found = visit.page.evaluate("options => axe.run(options)", options)
    return [
        f"{violation['id']}: {node['html'][:160]}" for violation in found["violations"] for node in violation["nodes"]
    ]


def weigh(visit: Visit, path: str) -> int:
    """The bytes of all files that a visit to a page needs, compressed as a host sends them."""
    visit.open(path)
    return sum(_compressed(request.response().body()) for request in visit.requests)


@cache
def _compressed(content: bytes) -> int:
    """The bytes of a file that was compressed. Pages share most of their files."""
    return len(gzip.compress(content))
