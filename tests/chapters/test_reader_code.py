"""What a reader sees is a reader's code: it runs as it stands, without the helpers of this book."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample import WHOLE
from scratch import ROOT

from tools.project import Project
from tools.steps.read import read
from tools.steps.shape import FIX, FOLDED, code_cells

PROJECT = Project(ROOT)
NAMES = [chapter.stem for chapter in PROJECT.chapters]
LONG = {"divergence", "loss-0-grad-norm-nan", "one-poisoned-rank", "two-penguins"}
"""Pages that train for long, or in several processes. `make test-whole` runs them too."""
READ = [name for name in NAMES if WHOLE or name not in LONG]
"""The pages that are read through. Of all pages, what is to be copied runs."""
LONGER = {"operators-of-your-own": 9, "which-tool-finds-my-nan": 7}
"""Pages whose first lines need a class of the reader's own, or catch an error."""
OURS = re.compile(r"\b(case|helpers|MASKED|reference|drawing|show)\b")


def sections(name):
    """The code cells of a chapter with their section and tags, in order: (heading, code, tags)."""
    found = code_cells(read(ROOT / "chapters" / f"{name}.md"))
    return [(heading, cell.source, set(cell.metadata.get("tags", []))) for heading, cell in found]


def visible(name):
    return [code for _, code, tags in sections(name) if not FOLDED & tags]


def pasted(name):
    """What to copy: the first cell of *At a glance*, those with an import in *What to do*, and each short case."""
    seen = [cell for cell in sections(name) if not FOLDED & cell[2]]
    first = [code for heading, code, _ in seen if heading == FIX][:1]
    to_do = [code for heading, code, _ in seen if heading == "What to do" and code.startswith(("import", "from"))]
    return [*first, *to_do, *(code for _, code, tags in seen if "beside" in tags or name == "four-cases")]


def solutions(name):
    """What who works through the exercises runs too, once the page is read."""
    return [code for _, code, tags in sections(name) if "solution" in tags]


def programs():
    """Those of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def ran(request, once):
    """What each page printed: read through, with the solutions, unless it is long; then each cell to copy on its own.

    The pages that no chosen test is about are not run.
    """
    about = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    names = [name for name in NAMES if name in about]
    through = {name: [visible(name), solutions(name)] if name in READ else [[], []] for name in names}
    sessions = {name: [through[name], *([[cell]] for cell in pasted(name))] for name in names}
    sessions["README"] = [[[program]] for program in programs()]
    command = [sys.executable, str(Path(__file__).with_name("plain.py"))]
    alone = {"PYTHONPATH": str(ROOT / "src"), "PATH": "", "OMP_NUM_THREADS": "1"}

    def run():
        given = json.dumps(sessions)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, env=alone)
        return done.returncode, done.stdout, done.stderr

    status, told, error = once("ran", run)
    assert status == 0, error
    return json.loads(told)


@pytest.mark.parametrize("name", NAMES)
def test_the_visible_cells_then_the_solutions_and_what_is_to_be_copied_alone_run_without_the_helpers(ran, name):
    assert [run["error"] for run in ran[name] if run["error"]] == []


def test_the_programs_of_the_readme_run_as_they_stand(ran):
    assert [run["error"] for run in ran["README"]] == ["", ""]
    assert "the derivative of sqrt at 0" in ran["README"][1]["printed"]


@pytest.mark.parametrize("name", NAMES)
def test_visible_cells_are_short_and_hardly_ours(name):
    lines = [line for cell in visible(name) for line in cell.splitlines() if line.strip()]
    assert [line for line in lines if len(line) > 78] == [], "a reader would have to scroll sideways"
    ours = [line for line in lines if OURS.search(line.partition("#")[0])]
    assert 10 * len(ours) <= len(lines), ours
    fix = [code.splitlines() for heading, code, _ in sections(name) if heading == FIX][:1]
    assert all(len(list(filter(str.strip, lines))) <= LONGER.get(name, 6) for lines in fix)


INSTALL = "pip install git+https://github.com/zero-or-nan/zero-or-nan"


@pytest.mark.parametrize("name", sorted({*NAMES} - {"operators-of-your-own"}))  # its readers have the library
def test_at_a_glance_says_how_to_install_what_its_code_imports(name):
    text = (ROOT / "chapters" / f"{name}.md").read_text(encoding="utf-8").partition("\n# ")[2]
    intro, _, rest = text.partition("## At a glance\n")
    glance = rest.partition("\n## ")[0]
    blocks = re.findall(r"^```(?:python|\{code-cell\} ipython3)\n(.*?)^```$", glance, re.DOTALL | re.MULTILINE)
    if any("zero_or_nan" in block for block in blocks if not block.startswith(":tags:")):
        assert INSTALL in intro + glance.partition("```")[0]
