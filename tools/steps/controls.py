"""Compare what the controls of the site compute with the samples that the cells computed, by running their script.

In a browser, the script hides a control that computes other numbers, so readers would never see why it is gone.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_SAMPLES = re.compile(r'data-control="([^"]*)" data-samples="([^"]*)"')
_PROGRAM = """
const document = {{ querySelectorAll: () => [] }};
{script}
const agree = ([name, samples]) => Object.hasOwn(CONTROLS, name) && agrees(CONTROLS[name], JSON.parse(samples));
console.log(JSON.stringify({placed}.filter((each) => !agree(each)).map(([name]) => name)));
"""


def wrong_controls(script: Path, pages: Iterable[str]) -> list[str]:
    """A text for each control that computes other numbers than its cell.

    Without node, no control is run, and a line says so.

    Args:
        script: `control.js`, which has the controls.
        pages: the HTML of each page.
    """
    placed = [tuple(map(html.unescape, found)) for page in pages for found in _SAMPLES.findall(page)]
    node = shutil.which("node")
    if not placed or node is None:
        if placed:
            print(f"{script.name} was NOT compared with the executed cells, because node is not installed")
        return []
    program = _PROGRAM.format(script=script.read_text(encoding="utf-8"), placed=json.dumps(placed))
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return [f"{script.name} does not run in node:\n{done.stderr.strip()}"]
    return [
        f"the control {name} in {script.name} computes other numbers than the cell that shows its samples: correct its "
        "arithmetic, its inputs or the names of its results"
        for name in json.loads(done.stdout)
    ]
