"""What a reader sees is a reader's code: it runs as it stands, without the helpers of this book."""

import ast
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

PROJECT = Project(ROOT)
NAMES = [chapter.stem for chapter in PROJECT.chapters]
LONG = {"divergence", "one-poisoned-rank"}
"""Pages that train for long, or in several processes. `make test-whole` runs them too."""
READ = [name for name in NAMES if WHOLE or name not in LONG]
"""The pages that are read through. Of all pages, what is to be copied runs."""
FOLDED = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
ALLOWED = {"torch", "zero_or_nan", *sys.stdlib_module_names}
FRAMEWORKS = {"loss-0-grad-norm-nan": {"transformers"}}
"""What the readers of some pages have too, for the page is about it."""
OURS = re.compile(r"\b(case|helpers|MASKED|reference|drawing|show)\b")


def sections(name):
    """The code cells of a chapter with their section, in order: (heading, cell)."""
    heading, found = "", []
    for cell in read(ROOT / "chapters" / f"{name}.md").cells:
        if cell.cell_type == "markdown":
            heading = ([heading, *re.findall(r"^## (.+)$", cell.source, re.MULTILINE)])[-1]
        elif cell.cell_type == "code":
            found.append((heading, cell))
    return found


def tags(cell):
    return set(cell.metadata.get("tags", []))


def visible(name):
    return [cell.source for _, cell in sections(name) if not FOLDED & tags(cell)]


def pasted(name):
    """The cells to copy: the first of *At a glance*, and those of *What to do* that begin with an import."""
    open_cells = [(heading, cell.source) for heading, cell in sections(name) if not FOLDED & tags(cell)]
    first = [source for heading, source in open_cells if heading == "At a glance"][:1]
    return first + [
        source for heading, source in open_cells if heading == "What to do" and source.startswith(("import", "from"))
    ]


def solutions(name):
    """What who works through the exercises runs too, once the page is read."""
    return [cell.source for _, cell in sections(name) if "solution" in tags(cell)]


def programs():
    """Those of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def ran(request):
    """What each page printed: read through, with the solutions, unless it is long; then each cell to copy on its own.

    The pages that no chosen test is about are not run.
    """
    about = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    names = [name for name in NAMES if name in about]
    through = {name: [visible(name), solutions(name)] if name in READ else [[], []] for name in names}
    sessions = {name: [through[name], *([[cell]] for cell in pasted(name))] for name in names}
    sessions["README"] = [[[program]] for program in programs()]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("plain.py"))],
        input=json.dumps(sessions),
        capture_output=True,
        text=True,
        timeout=600,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_the_visible_cells_then_the_solutions_and_what_is_to_be_copied_alone_run_without_the_helpers(ran, name):
    assert [run["error"] for run in ran[name] if run["error"]] == []


def test_the_programs_of_the_readme_run_as_they_stand(ran):
    assert [run["error"] for run in ran["README"]] == ["", ""]
    assert "the derivative of sqrt at 0" in ran["README"][1]["printed"]


@pytest.mark.parametrize("name", NAMES)
def test_visible_cells_are_short_import_what_a_reader_has_and_are_hardly_ours(name):
    for cell in visible(name):
        for node in ast.walk(ast.parse(cell)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {module.partition(".")[0] for module in modules} <= ALLOWED | FRAMEWORKS.get(name, set()), cell
    lines = [line for cell in visible(name) for line in cell.splitlines() if line.strip()]
    assert [line for line in lines if len(line) > 78] == [], "a reader would have to scroll sideways"
    ours = [line for line in lines if OURS.search(line.partition("#")[0])]
    assert 10 * len(ours) <= len(lines), ours


LOOKED_UP = {"atlas", "not-your-case", "returned-nan-values"}
"""Pages with claims that are not read but looked things up in: they have no exercises."""

CASES = [name for name in NAMES if any(heading == "At a glance" for heading, _ in sections(name))]
INSTALL = "pip install git+https://github.com/zero-or-nan/zero-or-nan"


LONGER = {"operators-of-your-own": 9}
"""Pages whose fix needs a class of the reader's own, with its lines to copy."""


SHOWN = {"find-it-in-your-model"}
"""Pages whose lines to copy show what is not finite, as a report, and print nothing."""


@pytest.mark.parametrize("name", CASES)
def test_a_case_begins_with_the_lines_to_copy(ran, name):
    first, *_ = [cell for heading, cell in sections(name) if heading == "At a glance"]
    assert len([line for line in first.source.splitlines() if line.strip()]) <= LONGER.get(name, 6)
    assert "import torch" in first.source
    printed = ran[name][2]["printed"]
    if name in SHOWN:
        assert first.source.splitlines()[-1] == "report" and not printed
        return
    assert printed.strip() and "nan" not in printed and "inf" not in printed.replace("finite", "")


@pytest.mark.parametrize("name", CASES)
def test_at_a_glance_says_how_to_install_what_its_code_imports(name):
    text = (ROOT / "chapters" / f"{name}.md").read_text(encoding="utf-8").partition("\n# ")[2]
    intro, _, rest = text.partition("## At a glance\n")
    glance = rest.partition("\n## ")[0]
    blocks = re.findall(r"^```(?:python|\{code-cell\} ipython3)\n(.*?)^```$", glance, re.DOTALL | re.MULTILINE)
    if any("zero_or_nan" in block for block in blocks if not block.startswith(":tags:")):
        assert INSTALL in intro + glance.partition("```")[0]


@pytest.mark.parametrize("name", CASES)
def test_a_case_folds_its_claims_and_draws_its_computation_where_it_says_why(name):
    found = sections(name)
    for _, cell in found:
        if re.search(r"\bcase\.(claim|raises)\(", cell.source):
            assert "hide-cell" in tags(cell), cell.source
    if any("case.verdict(" in cell.source for _, cell in found):
        assert "Why" in [heading for heading, cell in found if re.search(r"(?m)^backward_figure\(", cell.source)]


@pytest.mark.parametrize("name", sorted(set(CASES) - LOOKED_UP))
def test_a_case_ends_in_exercises_with_folded_solutions(name):
    found = sections(name)
    exercises = [cell for heading, cell in found if heading == "Exercises"]
    solutions = [cell for cell in exercises if "solution" in tags(cell)]
    assert 2 <= len(solutions) <= 3 and found[-1][0] == "Exercises"
    assert all("hide-cell" in tags(cell) for cell in exercises)
    assert all("print(" in cell.source for cell in solutions), "a solution shows its answer"
