"""Every claim, the tests of the library and a sample of the operator database, on one PyTorch after another.

Each version gets a copy of the checkout and an environment of its own, which are removed when it is done. What a
version gave is kept in `_build/matrix` until all are through: interrupted, the same command goes on from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ..measure.parts import files
from ..project import Problem, Project, read_record, write
from ..steps.made import digest

RELEASES = tuple(f"2.{minor}.0" for minor in range(6, 16))
"""The first of every minor release that the library promises to work on."""
DISK = 9 * 2**30
"""Bytes that one environment takes while pip unpacks it: on Linux a wheel brings the libraries of CUDA."""
PARTS = {
    "claims": ("-m", "tools", "record"),
    "tests": ("-m", "tools", "library-tests"),
    "mended": ("-m", "tools", "mended-sample"),
}
"""What runs on each version, as arguments of its Python."""
WRONG = ("error", "failed", "broken", "other_bits", "crashed")
"""What a part must not have found."""

_COPIED = ("_config.yml", "_toc.yml", "pyproject.toml", "chapters", "notebooks", "src", "tests", "theme", "tools")


def matrix(project: Project, *names: str) -> int:
    """Run the matrix, with a line for each step; write `results/`; return the exit status.

    Args:
        project: the checkout.
        names: releases of PyTorch, such as `2.9.1`; all of `RELEASES` without any.

    Raises:
        Problem: before any work, for what is no version, or when the disk has no room for one environment.
    """
    versions = list(dict.fromkeys(names or RELEASES))
    if strange := [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)]:
        raise Problem(f"not a version of PyTorch: {', '.join(strange)}; write them like 2.9.1 2.15.0")
    room = project.build / "matrix"
    room.mkdir(parents=True, exist_ok=True)
    for abandoned in room.glob("*/"):  # of a run that was killed
        shutil.rmtree(abandoned)
    free = shutil.disk_usage(room).free
    if free < DISK:
        raise Problem(f"{room} has {free / 2**30:.0f} GiB free; one environment takes up to {DISK / 2**30:.0f}")
    source = _digest(project)
    runs = [Run(project, version, room, source) for version in versions]
    todo = [run for run in runs if not run.done()]
    at_once = max(1, min(os.cpu_count() or 1, free // DISK))
    print(f"{len(todo)} of {len(runs)} versions to do, {at_once} at a time", flush=True)
    pool = ThreadPoolExecutor(at_once)
    # What runs is in sessions of its own: ended like this, the command would leave it behind.
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        for future in as_completed([pool.submit(run.perform) for run in todo]):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for run in todo:
            run.stop()
        raise
    finally:
        pool.shutdown(wait=True)
        signal.signal(signal.SIGTERM, before)
    rows = [run.row() for run in runs]
    _record(project, rows)
    bad = [row["torch"] for row in rows if not _good(row)]
    print(f"{len(rows) - len(bad)} of {len(rows)} versions are as they should be")
    if bad:
        print(f"not {', '.join(bad)}: their logs are in {room}, and the same command does them again", file=sys.stderr)
    else:
        shutil.rmtree(room)
    return int(bool(bad))


class Run:
    """One version of PyTorch.

    Args:
        project: the checkout.
        version: of PyTorch.
        room: the folder of the matrix.
        source: a digest of what is run; rows of another one are done again.
    """

    def __init__(self, project: Project, version: str, room: Path, source: str) -> None:
        self.project = project
        self.version = version
        self.source = source
        self.folder = room / f"torch-{version}"
        self.file = room / f"{version}.json"
        self.log = room / f"{version}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._door = threading.Lock()
        self._stopped = False

    def done(self) -> bool:
        """Whether an earlier run of the same source found this version as it should be."""
        if not self.file.is_file():
            return False
        kept = json.loads(self.file.read_text(encoding="utf-8"))
        return kept["source"] == self.source and _good(kept["row"])

    def row(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text(encoding="utf-8"))["row"])

    def perform(self) -> None:
        """Install, run all parts, keep what they gave, and remove the environment, whatever happens."""
        try:
            self.log.unlink(missing_ok=True)
            row = self._row()
            write(self.file, json.dumps({"source": self.source, "row": row}) + "\n")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """End what runs, and let nothing more start."""
        with self._door:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"torch": self.version}
        book, python = self.folder / "book", self.folder / "environment" / "bin" / "python"
        if error := self._install(python):
            return {**row, "error": error}
        self._copy(book)
        for name, arguments in PARTS.items():
            started = time.monotonic()
            status = self._run([str(python), *arguments], book)
            row[name] = getattr(self, f"_{name}")(book, status)
            self._say(f"{name}: {_told(name, row[name])}, {time.monotonic() - started:.0f} s")
        return row

    def _install(self, python: Path) -> str:
        """Make the environment; return what was wrong, or nothing."""
        environment = python.parents[1]
        pins = write_pins(self.project, self.folder / "pins.txt")
        started = time.monotonic()
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(environment)],
            [*pip, f"torch=={self.version}", "-r", str(pins)],
        ):
            if self._run(command, self.folder):
                error = next((line for line in reversed(self._said()) if line.startswith("ERROR")), "see the log")
                self._say(f"can't be installed: {error}")
                return error
        self._say(f"installed, {time.monotonic() - started:.0f} s")
        return ""

    def _copy(self, book: Path) -> None:
        for name in files(self.project, *_COPIED):
            (book / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.project.root / name, book / name)

    def _claims(self, book: Path, status: int) -> dict[str, Any]:
        """How many hold; the file of outcomes goes to `results/`."""
        paths = list((book / "results").glob("torch-*.json"))
        if not paths:
            return {"error": self._last()}
        text = paths[0].read_text(encoding="utf-8")
        record = json.loads(text)
        write(self.project.results / paths[0].name, text)
        held = [fact["holds"] for fact in record["outcomes"]]
        found = {"held": sum(held), "of": len(held)}
        return found if all(held) and status == 0 else {**found, "error": self._last()}

    def _tests(self, book: Path, status: int) -> dict[str, Any]:
        path = book / "_build" / "library-tests.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"error": self._last()}

    def _mended(self, book: Path, status: int) -> dict[str, Any]:
        path = book / "_build" / "mended.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"error": self._last()}

    def _run(self, command: list[str], folder: Path) -> int:
        """Run a command to its end, its words in the log; return its status."""
        folder.mkdir(parents=True, exist_ok=True)
        # The library and helpers of the copy, on one thread: several versions share the processors.
        own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            with self._door:
                if self._stopped:
                    raise KeyboardInterrupt
                self._process = subprocess.Popen(
                    command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True
                )
            status = self._process.wait()
        if self._stopped:
            raise KeyboardInterrupt
        return status

    def _said(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _last(self) -> str:
        return next((line for line in reversed(self._said()) if line.strip()), "nothing was said")

    def _say(self, text: str) -> None:
        print(f"  {self.version:>8}  {text}", flush=True)


def write_pins(project: Project, path: Path) -> Path:
    """The pins without PyTorch and what it pins itself: another version wants others of those.

    Returns:
        The path, written.
    """
    blocks = re.findall(r"^\S[^\n]*(?:\n +#[^\n]*)*", (project.root / "requirements.txt").read_text(), re.MULTILINE)
    own = re.compile(r"^torch==|^setuptools==|# +via torch$", re.MULTILINE)
    write(path, "\n".join(block.partition("\n")[0] for block in blocks if not own.search(block)) + "\n")
    return path


def _digest(project: Project) -> str:
    """Of everything that is copied, and of the pins."""
    names = files(project, *_COPIED, "requirements.txt")
    return digest(*(part for name in names for part in (name, (project.root / name).read_bytes())))


def _record(project: Project, rows: list[dict[str, Any]]) -> None:
    """Put the rows into `results/measured/matrix.json`, and what the setups gave into their table."""
    from ..measure import setups

    path = project.matrix
    known = read_record(path)["rows"] if path.is_file() else []
    found = {row["torch"]: row for row in known}
    for row in rows:
        told = row.get("tests", {}).pop("setups", [])
        setups.add(project, row["torch"], told)
        found[row["torch"]] = row
    ordered = sorted(found.values(), key=lambda row: [int(n) for n in re.findall(r"\d+", row["torch"])])
    write(path, json.dumps({"rows": ordered}, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path.relative_to(project.root)}")


def _good(row: dict[str, Any]) -> bool:
    parts = [row.get(name, {"error": "missing"}) for name in PARTS]
    return "error" not in row and not any(part.get(wrong) for part in parts for wrong in WRONG)


def _told(name: str, found: dict[str, Any]) -> str:
    """A part's figures in a line."""
    if name == "claims" and "held" in found:
        return f"{found['held']} of {found['of']} hold"
    if name == "tests" and "passed" in found:
        return f"{found['passed']} passed, {found['skipped']} skipped, {len(found['failed'])} failed"
    if name == "mended" and "mended" in found:
        figures = f"{found['mended']} of {found['contaminated']} contaminated samples mended"
        return f"{figures}, {found['broken']} broken, {found['other_bits']} with other bits"
    return f"failed: {found['error']}"
