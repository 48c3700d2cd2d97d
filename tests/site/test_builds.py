"""A site depends on the tree that it is built from: not on the day, the folder's past, or the network."""

import difflib
import filecmp
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample import WHOLE
from scratch import ROOT

ISOLATED = """
import fcntl, os, socket, struct, sys

with socket.socket() as any_socket:
    # The kernels speak to the build over the loopback interface: bring it up, and nothing else.
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x1))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError as error:
    print("no network:", error, file=sys.stderr)
else:
    sys.exit("there is a network")
os.execv(sys.argv[1], sys.argv[1:])
"""


def without_network() -> list[str]:
    """The beginning of a command that runs without a network; empty if this machine does not allow that."""
    for command in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return [*command, sys.executable, "-c", ISOLATED]
    return []


@pytest.mark.skipif(not WHOLE, reason="`make twice` runs it, because it takes minutes")
def test_two_builds_of_one_tree_give_the_same_bytes_and_need_no_network(site, checkout):
    # The first from whatever was cached in this folder; the second in another folder from nothing, and where possible
    # without a network.
    git = ROOT / ".git"  # a file, if this is one of several work trees
    (shutil.copytree if git.is_dir() else shutil.copy)(git, checkout.root / ".git")
    shutil.rmtree(checkout.root / "_build" / "executed")
    isolated = without_network()
    done = checkout._run(*isolated, sys.executable, "-m", "tools", "book", timeout=400)
    assert done.returncode == 0 and " cached " not in done.stdout, done.stdout + done.stderr
    assert not isolated or done.stderr.startswith("no network: ")
    files = [{path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (site, checkout.site)]
    assert files[0] == files[1]
    assert len(files[0]) > 50
    _, differing, errors = filecmp.cmpfiles(site, checkout.site, map(str, files[0]), shallow=False)
    assert errors == []
    assert [difference(site / name, checkout.site / name) for name in sorted(differing)] == []


def difference(one: Path, other: Path) -> str:
    """Where two files begin to differ."""
    texts = [path.read_bytes().decode(errors="replace").splitlines() for path in (one, other)]
    return "\n".join([one.name, *itertools.islice(difflib.unified_diff(*texts, n=0, lineterm=""), 2, 8)])[:2000]
