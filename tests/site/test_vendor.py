"""The script that the site ships is the one of the package that `package.json` names, so that npm watches over it."""

import json
import os

import pytest
from scratch import ROOT

from tools.measure.browser import MODULES

VENDOR = ROOT / "theme" / "static" / "vendor"


@pytest.fixture
def package():
    """The package as npm installed it."""
    folder = ROOT / MODULES / "minisearch"
    if not folder.is_dir():
        reason = "minisearch not installed; `make browser` installs it"
        (pytest.fail if os.environ.get("BROWSER_TESTS") == "required" else pytest.skip)(reason)
    return folder


def test_the_vendored_script_is_byte_for_byte_that_of_the_version_that_is_pinned(package):
    manifest = json.loads((ROOT / MODULES.parent / "package.json").read_text(encoding="utf-8"))
    pinned = manifest["dependencies"]["minisearch"]
    installed = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    assert installed == pinned, "run `make browser`"
    # Its last line names a map of the source, which is not shipped: a browser would ask for it in vain.
    script = (package / "dist" / "umd" / "index.js").read_bytes()
    assert (VENDOR / "minisearch.js").read_bytes() == script.removesuffix(b"//# sourceMappingURL=index.js.map\n")


def test_its_licence_comes_with_it(package):
    assert (VENDOR / "minisearch.LICENSE.txt").read_bytes() == (package / "LICENSE.txt").read_bytes()
