"""Serves the built site on this machine as a host does: compressed, and under its own address.

`python -m http.server` is not used: it compresses nothing, and the tests weigh the pages as a host sends them.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .project import Problem, Project

PORT = 8000
_TEXT = {".html", ".css", ".js", ".json", ".svg", ".xml", ".ipynb", ".md"}


class _Handler(SimpleHTTPRequestHandler):
    """Serves the files of one folder. Text is compressed if the browser accepts it. A missing file gives `404.html`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        status = HTTPStatus.OK
        if not path.is_file():
            path, status = Path(self.directory) / "404.html", HTTPStatus.NOT_FOUND
        content = path.read_bytes() if path.is_file() else b"not found"
        self.send_response(status)
        self.send_header("Content-Type", self.guess_type(str(path)))
        if path.suffix in _TEXT and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = _compressed(content)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "max-age=600")  # as on GitHub Pages
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Print nothing, because the browser shows which files it could not load."""


@lru_cache(maxsize=50)
def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """Print nothing if a browser closes a connection early."""


@contextmanager
def served(site: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder while the block runs.

    Args:
        site: the folder.
        port: the port on 127.0.0.1. With 0, the system chooses a free port.

    Yields:
        The address, without a slash at its end.

    Raises:
        Problem: if another program listens on this port.
    """
    try:
        server = _Server(("127.0.0.1", port), partial(_Handler, directory=str(site)))
    except OSError as error:
        raise Problem(
            f"the site can't be served on port {port}: {error.strerror}. If another command serves the site already, "
            "stop that command."
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def built(project: Project) -> Path:
    """The folder of the built site.

    Raises:
        Problem: if the site is not built.
    """
    if not (project.site / "index.html").is_file():
        raise Problem("the site is not built yet: run `make book` first")
    return project.site


def serve(project: Project) -> None:
    """Serve the built site until Ctrl-C. Ctrl-C is the normal end of the command, and not a failure.

    Raises:
        Problem: if the site is not built.
    """
    with served(built(project), PORT) as address:
        print(f"{address}  (press Ctrl-C to stop)", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
