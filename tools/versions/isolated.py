"""Runs work in separate environments. Each environment is removed when its work is done, and the results are kept.

A command that uses this module keeps its results in a folder of `_build` until all work is done. If you interrupt the
command, run it again, and it continues. nox and tox are not used: nox runs one environment at a time, both keep every
environment, which has gigabytes, and neither continues where it stopped.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write

DISK = 9 * 2**30
"""The bytes that one environment needs while pip unpacks it. On Linux a wheel brings the libraries of CUDA."""


def files(project: Project, *under: str) -> list[str]:
    """The files of the checkout, sorted: files in git, and new files that git does not ignore.

    All, or only those below some paths.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *under],
        cwd=project.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = {name: project.root / name for name in listed.stdout.split("\0") if name}
    return sorted(name for name, path in paths.items() if path.is_file() and not path.is_symlink())


def pinned(project: Project) -> dict[str, str]:
    """The version of every package that `requirements.txt` pins."""
    text = (project.root / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text))


class Isolated:
    """One piece of work, with a folder for its environment.

    Args:
        project: the checkout.
        name: the name of the work. Its result and its log have this name.
        room: the folder of the command.
        source: a digest of the code that runs. Results with another digest are computed again.
        folder: the name of the work's folder, which is removed when the work is done.
    """

    def __init__(self, project: Project, name: str, room: Path, source: str, folder: str) -> None:
        self.project = project
        self.name = name
        self.source = source
        self.folder = room / folder
        self.file = room / f"{name}.json"
        self.log = room / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._door = threading.Lock()
        self._stopped = False

    def is_good(self, row: dict[str, Any]) -> bool:
        """Whether a result is final. The same command computes the other results again."""
        return "error" not in row

    def done(self) -> bool:
        """Whether an earlier run of the same source gave a final result."""
        if not self.file.is_file():
            return False
        kept = json.loads(self.file.read_text(encoding="utf-8"))
        return kept["source"] == self.source and self.is_good(kept["row"])

    def row(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text(encoding="utf-8"))["row"])

    def perform(self) -> None:
        """Do the work, keep its result, and remove the environment, even after an error."""
        try:
            self.log.unlink(missing_ok=True)
            row = self._row()
            write(self.file, json.dumps({"source": self.source, "row": row}) + "\n")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """End the running process, and let no further process start."""
        with self._door:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _row(self) -> dict[str, Any]:
        """The result of the work, with an `error` if the work can't be done."""
        raise NotImplementedError

    def _environment(self, python: Path, packages: Sequence[str]) -> str:
        """Make the environment of this Python with these packages. Return an error message, or the empty text."""
        started = time.monotonic()
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], [*pip, *packages]):
            if self._run(command, self.folder):
                error = next((line for line in reversed(self._said()) if line.startswith("ERROR")), "see the log")
                self._say(f"pip can't install it: {error}")
                return error
        self._say(f"installed, {time.monotonic() - started:.0f} s")
        return ""

    def _run(self, command: list[str], folder: Path, **variables: str) -> int:
        """Run a command to its end, with its output in the log, and return its exit status."""
        folder.mkdir(parents=True, exist_ok=True)
        # The library and helpers of the copy, with one thread, because several environments share the processors.
        own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            # The lock keeps `stop` from missing a process that is about to start.
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
        return next((line for line in reversed(self._said()) if line.strip()), "the log is empty")

    def _say(self, text: str) -> None:
        print(f"  {self.name:>8}  {text}", flush=True)


def open_room(project: Project, command: str) -> Path:
    """The folder in which a command keeps its environments and their results.

    Raises:
        Problem: if the disk has no room for one environment.
    """
    room = project.build / command
    room.mkdir(parents=True, exist_ok=True)
    for abandoned in room.glob("*/"):  # left by a run that was killed
        shutil.rmtree(abandoned)
    free = shutil.disk_usage(room).free
    if free < DISK:
        raise Problem(
            f"{room} has {free / 2**30:.0f} GiB free, but an environment needs up to {DISK / 2**30:.0f} GiB; free "
            "some space"
        )
    return room


def results(runs: Sequence[Isolated], what: str, at_once: int = 1) -> list[dict[str, Any]]:
    """The results of all pieces of work. Earlier final results are not computed again."""
    todo = [run for run in runs if not run.done()]
    print(f"running {len(todo)} of {len(runs)} {what}, {at_once} at a time", flush=True)
    perform(todo, at_once)
    return [run.row() for run in runs]


def give_up_or_clean(room: Path, wrong: Sequence[str]) -> int:
    """Print what failed, and keep the folder with the logs; or remove the folder. Return the exit status."""
    if not wrong:
        shutil.rmtree(room)
        return 0
    again = "The same command runs only these again."
    print(f"failed: {', '.join(wrong)}. Their logs are in {room}. {again}", file=sys.stderr)
    return 1


def perform(todo: Sequence[Isolated], at_once: int = 1) -> None:
    """Do all pieces of work, `at_once` of them at a time. If interrupted, stop every running process."""
    pool = ThreadPoolExecutor(at_once)
    # The processes run in sessions of their own, so SIGTERM would end only this command and leave them running.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for future in as_completed([pool.submit(each.perform) for each in todo]):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for each in todo:
            each.stop()
        raise
    finally:
        pool.shutdown(wait=True)
        signal.signal(signal.SIGTERM, before)
