"""`make serve` shows the built site to this machine alone, and says what is wrong."""

import gzip
import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from tools.project import Problem
from tools.serve import serve, served


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text("front " * 100, encoding="utf-8")
    (tmp_path / "404.html").write_text("no such page", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with served(tmp_path) as address:
        yield address


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return answer.read(), answer.headers


def test_a_file_is_served_with_its_type_and_text_is_compressed_for_those_who_take_it(site):
    for accepts in ({}, {"Accept-Encoding": "gzip"}):
        content, headers = get(f"{site}/a.png", **accepts)
        assert content == b"\x89PNG" and headers["Content-Type"] == "image/png" and not headers["Content-Encoding"]
    content, headers = get(f"{site}/", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and len(content) < 100
    assert gzip.decompress(content) == get(f"{site}/index.html")[0] == b"front " * 100


@pytest.mark.parametrize("path", ["deep/nowhere.html", "%2e%2e/%2e%2e/etc/passwd"])
def test_what_is_not_there_gets_the_page_that_says_so(site, path):
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(f"{site}/{path}")
    with caught.value as answer:
        assert answer.code == 404 and answer.read() == b"no such page"


def test_no_other_machine_is_served(site):
    port = int(site.rpartition(":")[2])
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
        pass  # what listens on all interfaces listens here too


def test_a_site_that_is_not_built_is_not_served(tmp_path):
    with pytest.raises(Problem, match="make book"):
        serve(SimpleNamespace(site=tmp_path))
