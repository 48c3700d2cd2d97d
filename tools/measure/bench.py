"""How long a build takes, measured side by side in one run: our build, the stock `jupyter-book build`, and the floor.

The floor is the least time that a build in one process can take. It imports PyTorch and matplotlib once, runs the cells
of all chapters one after another, and renders. Every measurement runs in a scratch copy of the checkout. Compare
ratios, because seconds depend on the machine.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import yaml

from ..project import Problem, Project, write

_PARTS = ("_config.yml", "_toc.yml", "chapters", "results", "src", "theme", "tools")
_RUNS = {1: 3, 4: 1, 16: 1}

_FLOOR = """
import sys
import torch, matplotlib.pyplot
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from tools.steps.read import read
from pathlib import Path

shell = TerminalInteractiveShell.instance()
for chapter in sys.argv[1:]:
    shell.reset(new_session=False)
    for cell in read(Path(chapter)).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()
"""


class Scratch:
    """A temporary copy of the checkout in which every chapter has several copies."""

    def __init__(self, project: Project, folder: Path, times: int) -> None:
        self.folder = folder
        self.build = folder / "_build"
        folder.mkdir()
        for part in _PARTS:
            source = project.root / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        self._multiply(times)
        self.chapters = [str(chapter) for chapter in Project(folder).chapters]

    def _multiply(self, times: int) -> None:
        toc = yaml.safe_load((self.folder / "_toc.yml").read_text(encoding="utf-8"))
        added = []
        for chapter in Project(self.folder).chapters:
            if chapter.stem == toc["root"].split("/")[-1]:
                continue
            text = chapter.read_text(encoding="utf-8")
            for copy in range(2, times + 1):
                # The cache would find equal code, so every copy has a comment with its number.
                marked = re.sub(r"(```\{code-cell\} ipython3\n(?::.*\n)*\n?)", rf"\1# copy {copy}\n", text, count=1)
                write(chapter.with_stem(f"{chapter.stem}-{copy}"), marked)
                added.append({"file": f"chapters/{chapter.stem}-{copy}"})
        if added:
            toc["parts"].append({"caption": "Copies", "chapters": added})
            write(self.folder / "_toc.yml", yaml.safe_dump(toc, sort_keys=False))

    def clean(self) -> None:
        """Delete everything that was built."""
        for folder in (self.build, Project(self.folder).notebooks):
            shutil.rmtree(folder, ignore_errors=True)

    def clean_pages(self) -> None:
        """Delete the pages, and keep the executed notebooks."""
        for part in ("html", ".doctrees", "jupyter_execute"):
            shutil.rmtree(self.build / part, ignore_errors=True)

    def edit(self, mark: int) -> None:
        """Change the code of one chapter."""
        chapter = self.folder / "chapters" / "where-over-division.md"
        text = chapter.read_text(encoding="utf-8")
        write(chapter, text.replace("torch.manual_seed(0)", f"torch.manual_seed(0)  # edit {mark}", 1))

    def ours(self) -> float:
        """Seconds that `make book` takes."""
        return self._time([sys.executable, "-m", "tools", "book"])

    def stock(self) -> float:
        """Seconds that `jupyter-book build` takes."""
        return self._time([str(Path(sys.executable).with_name("jupyter-book")), "build", "."])

    def floor(self) -> float:
        """Seconds that one process takes for all cells, plus the seconds for rendering alone."""
        cells = self._time([sys.executable, "-c", _FLOOR, *self.chapters])
        self.ours()
        self.clean_pages()
        return cells + self.stock()

    def _time(self, command: list[str]) -> float:
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'src'}"}
        started = time.monotonic()
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - started
        if done.returncode:
            raise Problem(f"{' '.join(command[:3])} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        return seconds


def bench(project: Project) -> None:
    """Measure, print each result at once, and write the table to `results/build-times.md`."""
    rows = []
    for times, runs in _RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            scratch = Scratch(project, Path(folder) / "book", times)
            rows += _measure(scratch, runs)
    path = project.results / "build-times.md"
    write(path, _report(rows))
    print(f"written: {path.relative_to(project.root)}")


def _measure(scratch: Scratch, runs: int) -> list[tuple[int, str, dict[str, float]]]:
    """One row for each situation, with the median seconds of each build. The builds run in turn."""
    count = len(scratch.chapters)
    cold: dict[str, list[float]] = {"ours": [], "stock": [], "floor": []}
    after: dict[str, dict[str, list[float]]] = {
        "nothing changed": {"ours": [], "stock": []},
        "one chapter edited": {"ours": [], "stock": []},
    }
    contestants: dict[str, Callable[[], float]] = {"ours": scratch.ours, "stock": scratch.stock}
    for run in range(runs):
        for name, build in contestants.items():
            scratch.clean()
            cold[name].append(build())
            after["nothing changed"][name].append(build())
            scratch.edit(2 * run + (name == "stock"))
            after["one chapter edited"][name].append(build())
        scratch.clean()
        cold["floor"].append(scratch.floor())
    rows = []
    for situation, seconds in {"cold": cold, **after}.items():
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        rows.append((count, situation, medians))
        print(f"{count} chapters, {situation}: " + ", ".join(f"{k} {v:.1f} s" for k, v in medians.items()), flush=True)
    return rows


def _report(rows: list[tuple[int, str, dict[str, float]]]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "jupyter-book", "myst-nb", "jupyter-cache"))
    lines = [
        "# How long a build takes",
        "",
        "`make bench` writes this file. The times are seconds (the median if there are several runs), measured in turn",
        "in one run. Compare the ratios, because the times depend on the machine. *Stock* is `jupyter-book build .`.",
        "*Floor* is one process that imports PyTorch and matplotlib once and runs all cells, plus rendering.",
        "",
        f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, {packages}. "
        f"Runs: {', '.join(f'{runs} at {times}×' for times, runs in _RUNS.items())}.",
        "",
        "| chapters | situation | ours | stock | floor | ours / stock | ours / floor |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for count, situation, medians in rows:
        ours, stock, floor = medians["ours"], medians["stock"], medians.get("floor")
        cells = [f"{ours:.1f}", f"{stock:.1f}", f"{floor:.1f}" if floor else "", f"{ours / stock:.2f}"]
        cells.append(f"{ours / floor:.2f}" if floor else "")
        lines.append(f"| {count} | {situation} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
