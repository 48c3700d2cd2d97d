"""Runs the programs of the boxes *In JAX*, and writes what they print to their pages and to a record.

JAX is no dependency of the project, so the programs run in a separate environment. On its page, a program is text and
not a cell: so the page's notebook runs without JAX.
"""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

from ..project import Problem, Project, page_text, read_record, write, write_record
from .isolated import Failed, Isolated, Row, clean, results

VERSION = "0.10.2"
"""The JAX that runs the programs."""

BOX = """\
<details>
<summary>The example of this page, and what it prints</summary>

```python
{code}```

JAX {jax} prints, on a CPU:

```text
{printed}```
"""
"""The box of a page, up to its words. Its author writes the code, and the command fills in the rest."""
_FOUND = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(BOX)), re.DOTALL)


def boxes(project: Project) -> dict[str, dict[str, str]]:
    """What each box shows, by the name of its page: its `code`, its version of `jax`, and what it has `printed`."""
    texts = {page.stem: page_text(page) for page in project.pages}
    return {name: box.groupdict() for name, text in texts.items() if (box := _FOUND.search(text))}


def check_boxes(project: Project) -> None:
    """Check that every box shows the recorded program and output.

    Raises:
        Problem: with the pages whose boxes show something else.
    """
    shown, path = boxes(project), _record(project)
    recorded = read_record(path) if path.is_file() else {}
    if changed := sorted(name for name in {*shown, *recorded} if shown.get(name) != recorded.get(name)):
        raise Problem(
            f"the boxes In JAX of these pages do not show what was recorded: {', '.join(changed)}; run `make jax`"
        )


def jax(project: Project) -> int:
    """Run the program of every box, and return the exit status.

    The outputs are written to the pages and to `results/measured/jax.json`.

    Raises:
        Problem: before any work, if the disk has no room for the environment.
    """
    shown = boxes(project)
    codes = {name: box["code"] for name, box in shown.items()}
    row = results(project, "jax", {"programs": partial(run, codes)}, ["tools/versions/jax.py", "chapters"])["programs"]
    if "error" not in row:
        for page in project.pages:
            if page.stem in row:
                old, new = (BOX.format(**each[page.stem]) for each in (shown, row))
                write(page, page_text(page).replace(old, new))
        write_record(_record(project), row)
    return clean(project, "jax", ["programs"] if "error" in row else [])


def _record(project: Project) -> Path:
    return project.results / "measured" / "jax.json"


def run(codes: dict[str, str], environment: Isolated) -> Row:
    """The content of each box, by the name of its page.

    Raises:
        Failed: if pip can't install JAX, or if a program fails.
    """
    environment.install(f"jax=={VERSION}")
    row = {}
    for name, code in codes.items():
        done = subprocess.run([environment.python, "-c", code], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"the program of {name} failed with {done.stderr.strip().rpartition(chr(10))[2]}")
        row[name] = {"code": code, "jax": VERSION, "printed": done.stdout}
    return row
