"""Runs tests of other projects with `ignoring` in place of PyTorch's own backward.

The tests come from a package's source distribution. Each package gets its own environment with the pinned PyTorch.
There its tests run three times: twice unchanged, and once with `zero_or_nan.ignoring` (`peers_plugin` replaces the
functions). A test counts if it passes in both unchanged runs, so flaky tests are left out.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from helpers import show

from ..measure.records import keep, prose, read
from ..project import Project, named, write
from .isolated import Failed, Isolated, Row, clean, results

PLUGIN = "peers_plugin"
SECONDS = 300
"""The most seconds that one test may take."""


@dataclass(frozen=True)
class Peer:
    """A package whose source distribution has tests.

    `tests` are the arguments of pytest that select the tests. `needs` are packages that only the tests import.
    `variables` are environment variables that the tests read, with their values.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


_GPYTORCH = "constraints distributions functions kernels lazy likelihoods means metrics mlls models optim priors utils"

PEERS = (
    # All examples together would train for an hour. The selected example has missing data, which is NaN.
    Peer(
        "gpytorch",
        "1.15.2",
        tuple(f"test/{part}" for part in f"{_GPYTORCH} variational examples/test_missing_data.py".split()),
    ),
    Peer("linear_operator", "0.6.1", ("test",)),
    Peer("einops", "0.8.2", ("einops/tests",), variables=(("EINOPS_TEST_BACKENDS", "numpy,torch"),)),
    # The other tests of opacus need torchvision, several processes, or a GPU.
    Peer(
        "opacus",
        "1.6.0",
        ("opacus/tests/grad_samples", "opacus/tests/per_sample_gradients_utils_test.py"),
        ("hypothesis",),
    ),
)
"""The packages and their selected tests. They need no network and no GPU, and take a few minutes."""


def peers(project: Project, *names: str) -> int:
    """Run the tests of all packages, or only of the named ones, and return the exit status.

    The results are written to `results/measured/peers.json`.

    Raises:
        Problem: before any work, if a name is unknown, or if the disk has no room for one environment.
    """
    every = {peer.name: peer for peer in PEERS}
    chosen = named(names, every, "package") or every
    sources = ["src/zero_or_nan", "requirements.txt", *(f"tools/versions/{name}.py" for name in ("peers", PLUGIN))]
    rows = results(project, "peers", {name: partial(run, project, every[name]) for name in chosen}, sources)
    wrong = [name for name, row in rows.items() if "error" in row]
    if not wrong:
        _record(project, list(rows.values()))
    return clean(project, "peers", wrong)


def run(project: Project, peer: Peer, environment: Isolated) -> Row:
    """The tests of one package: what passes with plain PyTorch, and what of it fails with `ignoring`."""
    install(project, peer, environment)
    # For packages without pytest settings: this file keeps pytest from using the settings of the checkout.
    write(environment.folder / "pytest.ini", "[pytest]\n")
    ours = environment.folder / "ours"
    shutil.copytree(project.source / "zero_or_nan", ours / "zero_or_nan")
    shutil.copy2(Path(__file__).with_name(f"{PLUGIN}.py"), ours)
    found = [tested(peer, environment, ours, kind) for kind in ("plain", "plain again", "ignoring")]
    counts = compared(*(each["tests"] for each in found))
    if not counts["passed"]:
        raise Failed(f"no test passes: {environment.last_words()}")
    about = {"package": peer.name, "version": peer.version, "tests": list(peer.tests)}
    return {**about, **found[0]["versions"], **counts}


def install(project: Project, peer: Peer, environment: Isolated) -> None:
    """Make the environment, with the package from its unpacked sources.

    Raises:
        Failed: if pip can't install them.
    """
    folder, fixed = environment.folder, environment.folder / "pins.txt"
    text = (project.root / "requirements.txt").read_text(encoding="utf-8")
    # The package's own requirements may have any version, but they may not replace these packages.
    write(fixed, "".join(re.findall(r"(?m)^(?:torch|numpy|pytest|pytest-timeout)==[^\s;]+\n", text)))
    environment.install("-r", str(fixed), *peer.needs)
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check"]
    archive = ["download", "--no-deps", "--no-binary", peer.name, "--dest", ".", f"{peer.name}=={peer.version}"]
    if environment.run([*pip, *archive], folder):
        raise Failed(environment.last_words())
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as packed:
        packed.extractall(folder, filter="data")
    path.with_suffix("").with_suffix("").rename(folder / "package")
    if environment.run([*pip, "install", "--quiet", "--no-cache-dir", "-c", str(fixed), "./package"], folder):
        raise Failed(environment.last_words())


def tested(peer: Peer, environment: Isolated, ours: Path, kind: str) -> dict[str, Any]:
    """The outcomes of the tests, and the versions that they ran on.

    Raises:
        Failed: if pytest did not finish.
    """
    out = environment.folder / f"{kind}.json"
    options = ["-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--rootdir=.", f"--timeout={SECONDS}"]
    variables = {
        "PYTHONPATH": str(ours),
        "PATH": os.pathsep.join((str(environment.python.parent), os.environ["PATH"])),  # tests start `python`
        "PEERS_OUT": str(out),
        "PEERS_KIND": kind,
    }
    command = [str(environment.python), "-m", "pytest", *options, *peer.tests]
    environment.run(command, environment.folder / "package", **variables, **dict(peer.variables))
    if not out.is_file():
        raise Failed(environment.last_words())
    found = dict(json.loads(out.read_text(encoding="utf-8")))
    words = Counter(test["outcome"] for test in found["tests"].values())
    environment.say(f"{kind}: {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}")
    return found


Tests = dict[str, dict[str, Any]]
"""The outcome of each test, by its name: `outcome`, `said`, `warnings`, and `calls` of the replaced functions."""


def compared(plain: Tests, again: Tests, ours: Tests) -> dict[str, Any]:
    """The counts of a row: the tests that pass twice with plain PyTorch, and their outcomes with `ignoring`."""

    def passing(tests: Tests) -> set[str]:
        return {name for name, test in tests.items() if test["outcome"] == "passed"}

    steady = passing(plain) & passing(again)
    failed = sorted(steady - passing(ours))
    warned = Counter(text for name in steady for text in set(ours.get(name, {}).get("warnings", ())))
    return {
        "passed": len(steady),
        "differentiating": sum(bool(ours.get(name, {}).get("calls")) for name in steady),
        "failed": {name: ours.get(name, {}).get("said") or "not run" for name in failed},
        "warnings": dict(sorted(warned.items())),
        "unsteady": sorted(passing(plain) ^ passing(again)),
        "failed_plainly": len({*plain, *again} - passing(plain) - passing(again) - _skipped(plain)),
    }


def _skipped(tests: Tests) -> set[str]:
    return {name for name, test in tests.items() if test["outcome"] == "skipped"}


def _record(project: Project, rows: list[dict[str, Any]]) -> None:
    """Put the rows into `results/measured/peers.json`, in the order of `PEERS`."""
    found = {row["package"]: row for row in (*read(project, "peers").get("rows", []), *rows)}
    ordered = [found[peer.name] for peer in PEERS if peer.name in found]
    for row in ordered:
        print(f"{row['package']} {row['version']}: {row['passed']} tests pass, {len(row['failed'])} fail with ignoring")
    keep(project, "peers", {"rows": ordered})


# On the page.


def shown(content: dict[str, Any]) -> str:
    """A table of other projects' tests: how many pass with plain PyTorch, and how many of those fail with ignoring."""
    counts = ("passed", "differentiating", "failed", "unsteady")
    rows, sums, failures, warned = [], dict.fromkeys(counts, 0), [], []
    for row in content["rows"]:
        figures = {name: row[name] if isinstance(row[name], int) else len(row[name]) for name in counts}
        sums = {name: sums[name] + figures[name] for name in counts}
        run = ", ".join(html.escape(each) for each in row["tests"])
        name = f"<code>{html.escape(row['package'])}</code> {html.escape(row['version'])}"
        rows.append([f'{name}<br><span class="zn-note">{run}</span>', *(str(figures[each]) for each in counts)])
        failures += [[f"<code>{html.escape(test)}</code>", html.escape(said)] for test, said in row["failed"].items()]
        warned += [[html.escape(said), str(tests)] for said, tests in row["warnings"].items()]
    run_on = content["rows"][0]
    caption = (
        f"{sums['failed']} of {sums['passed']:,} tests that pass with plain PyTorch fail with <code>ignoring</code>; "
        f"torch {html.escape(run_on['torch'])}, Python {html.escape(run_on['python'])}"
    )
    head = [
        "package, and the tests that ran",
        "tests that pass with plain PyTorch",
        "of these, tests that call backward",
        "of these, tests that fail with ignoring",
        "tests left out",
    ]
    foot = ["all packages", *(str(sums[name]) for name in counts)]
    parts = [show.table(caption, head, rows, foot, stack=True)]
    if failures:
        parts.append(show.table("Tests that fail with ignoring", ["test", "its error message"], failures, stack=True))
    if warned:
        parts.append(show.table("Warnings of ignoring in these tests", ["warning", "tests"], warned))
    return prose(*parts)
