"""Every notebook as Colab runs it: alone in an empty folder, beside torch, without library and helpers.

The set-up cell is the one that readers run, and does what it does for them: git clones the repository, and nothing is
installed. A few notebooks are run, which together import from every package that the book imports from. What the others
import is imported in one process. `make colab` runs every notebook.
"""

import ast
import asyncio
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from textwrap import indent

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from machines import PROJECT, Machine, pinned
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from sample import WHOLE

NOTEBOOKS = [PROJECT.notebook(chapter) for chapter in PROJECT.chapters]


def statements(path):
    """The import statements of a notebook's cells, without those of the standard library's modules."""
    cells = nbformat.read(path, as_version=4).cells
    nodes = [node for cell in cells if cell.cell_type == "code" for node in ast.walk(ast.parse(cell.source))]
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {ast.unparse(node) for node in found if not packages(ast.unparse(node)) <= sys.stdlib_module_names}


def packages(statement):
    """The packages from which a statement imports."""
    (node,) = ast.parse(statement).body
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    return {name.partition(".")[0] for name in names}


def few(paths):
    """A few of the notebooks, which import from every package that any imports: next the one with most new ones."""
    missing = {path: set().union(*map(packages, statements(path))) for path in paths}
    chosen = []
    while any(missing.values()):
        chosen.append(max(missing, key=lambda path: len(missing[path])))
        new = missing[chosen[-1]]
        missing = {path: names - new for path, names in missing.items()}
    return chosen


PLAYED = NOTEBOOKS if WHOLE else few(NOTEBOOKS)
MIME = "application/vnd.zero-or-nan+json"
ABOUT_TORCH = "[torch.__version__, torch.__file__, __import__('os').stat(torch.__file__).st_mtime_ns]"
FILES = "[__import__(name).__file__ for name in ('helpers', 'zero_or_nan')]"

# On a machine whose index serves PyTorch for CUDA, torch alone is gigabytes: the first test waits for it.
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Executed:
    """A notebook that was run on a machine of its own.

    Args:
        notebook: with its outputs.
        error: of the cell that stopped it, or nothing.
        torch: its version, file and age, as the kernel saw them when all cells were through.
        files: of the helpers and of the library that the kernel had imported by then.
        before: what was installed on the machine.
        after: the same, once the notebook was through.
        machine: where it ran.
    """

    notebook: nbformat.NotebookNode
    error: str
    torch: list
    files: list
    before: tuple
    after: tuple
    machine: Machine


def play(machine, path):
    """Run one notebook on a machine that has seen nothing before it."""
    shutil.copy(path, machine.folder)
    before = machine.installed()
    notebook = nbformat.read(machine.folder / path.name, as_version=4)
    ask = f"import json, torch; print(json.dumps([{ABOUT_TORCH}, {FILES}]))"
    notebook.cells.append(nbformat.v4.new_code_cell(ask))
    error = asyncio.run(execute(machine, notebook))
    answer = notebook.cells.pop()
    torch, files = [], []
    if error:
        error = f"{path.name} stops:\n{error}\nThe set-up cell printed:\n{printed(setup_cell(notebook)) or '(nothing)'}"
    else:
        torch, files = json.loads(printed(answer))
    return Executed(notebook, error, torch, files, before, machine.installed(), machine)


async def execute(machine, notebook):
    """Run a notebook's cells in place, one after another, and stop at the first that raises: return its error."""
    client = NotebookClient(
        notebook, km=kernel(machine), timeout=300, resources={"metadata": {"path": str(machine.folder)}}
    )
    async with client.async_setup_kernel(env=machine.variables, cleanup_kc=True):
        for index, cell in enumerate(notebook.cells):
            try:
                await client.async_execute_cell(cell, index)
            except CellExecutionError as error:
                return plain(str(error))
    return ""


def kernel(machine):
    """A manager of kernels of this machine, whatever else is installed on the computer."""
    launch = [str(machine.python), "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
    spec = {"argv": launch, "language": "python", "display_name": "Python 3"}
    specs = machine.prefix.parent / "kernels"
    (specs / "python3").mkdir(parents=True)
    (specs / "python3" / "kernel.json").write_text(json.dumps(spec))
    manager = KernelSpecManager(kernel_dirs=[str(specs)], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=manager)


@pytest.fixture(scope="session")
def colab(machines):
    """What every Colab has that this book needs."""
    made = machines.machine("colab")
    machines.provide(made, "numpy", "matplotlib", "ipykernel", "transformers", "accelerate")
    return made


@pytest.fixture(scope="session")
def torch(colab):
    """Its version, file and age before any notebook ran."""
    return json.loads(colab.run(f"import json, torch; print(json.dumps({ABOUT_TORCH}))"))


@pytest.fixture
def machine(machines, colab, request):
    return machines.machine(request.node.name, colab)


@pytest.fixture(scope="session")
def runs(machines, colab, request):
    """The selected notebooks, each being run: two at a time, since a kernel keeps one processor busy."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    selected = {spec.params.get("path") for spec in params if spec is not None}
    with ThreadPoolExecutor(2) as pool:
        wanted = [path for path in PLAYED if path in selected]
        yield {path: pool.submit(lambda path: play(machines.machine(path.stem, colab), path), path) for path in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(params=PLAYED, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture(scope="session")
def setup():
    """What the set-up cell does; it is one and the same everywhere."""
    (source,) = {setup_cell(nbformat.read(path, as_version=4)).source for path in NOTEBOOKS}
    return source + "\n"


def test_all_that_any_notebook_imports_is_there_once_the_set_up_cell_ran(machine, setup):
    every = sorted(set().union(*map(statements, NOTEBOOKS)))
    assert len(every) > 30 and any("helpers" in statement for statement in every)
    assert machine.run("\n".join([setup, *every, f"print({FILES})"])) == f"{cloned(machine)}\n"


def test_the_notebooks_that_are_run_import_from_every_package_that_any_notebook_imports_from():
    played, every = (set().union(*map(packages, set().union(*map(statements, paths)))) for paths in (PLAYED, NOTEBOOKS))
    assert played == every > {"helpers", "torch", "zero_or_nan"}


def test_a_fresh_machine_has_torch_at_its_pin_and_neither_pip_nor_anything_of_the_book(colab, torch):
    assert torch[0].partition("+")[0] == pinned("torch")
    find = "from importlib.util import find_spec; print(*map(find_spec, ['pip', 'helpers', 'zero_or_nan']))"
    assert colab.run(find) == "None None None\n"


def test_a_notebook_runs_to_its_end_from_the_clone_and_installs_nothing(runs, path, torch):
    run = runs[path].result()
    if run.error:
        pytest.fail(run.error, pytrace=False)
    assert not [output for output in outputs(run.notebook) if output.output_type == "error"]
    assert all(cell.execution_count for cell in run.notebook.cells if cell.cell_type == "code")
    assert printed(setup_cell(run.notebook)) == ""
    assert run.files == cloned(run.machine) and run.torch == torch and run.after == run.before
    assert sorted(path.name for path in run.machine.folder.iterdir() if path.suffix != ".ipynb") == ["zero-or-nan"]


def test_every_claim_holds_and_can_be_read(runs, path):
    notebook = runs[path].result().notebook
    shown = [output.data for output in outputs(notebook) if MIME in output.get("data", {})]
    facts = [data[MIME] for data in shown if data[MIME]["type"] in ("claim", "verdict")]
    for fact in facts:
        assert fact["holds"] is True, json.dumps(fact, indent=2)
    assert all(data["text/html"] for data in shown)
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(r"^case\.(claim|verdict)\(", cell.source, flags=re.MULTILINE):
            assert any(MIME in output.get("data", {}) for output in cell.outputs), f"shows no claim:\n{cell.source}"


def test_the_set_up_cell_does_nothing_where_both_are_there(machine, machines, setup):
    machine.find(machines.clone / "src")
    unreachable(machine)
    assert machine.run(f"import sys\nbefore = list(sys.path)\n{setup}print(sys.path == before)") == "True\n"
    assert list(machine.folder.iterdir()) == []


def test_the_set_up_cell_may_run_again_and_after_the_kernel_restarted(machine, setup):
    again = f"{setup}{setup}print(sys.path.count(str(book / 'src')), {FILES})"
    assert machine.run(again) == f"1 {cloned(machine)}\n"
    unreachable(machine)
    assert machine.run(again) == f"1 {cloned(machine)}\n"


@pytest.mark.parametrize("already", ["", "import helpers\n"], ids=["not imported yet", "already imported"])
def test_helpers_and_a_library_of_the_readers_own_are_not_taken_for_the_books(machine, machines, setup, already):
    (machine.folder / "helpers.py").write_text("")
    shutil.copytree(machines.clone / "src" / "zero_or_nan", machine.packages / "zero_or_nan")
    assert machine.run(f"{already}{setup}from helpers import Case\nprint({FILES})") == f"{cloned(machine)}\n"


def test_a_set_up_without_network_is_an_error_that_leaves_nothing_and_works_once_there_is_one(machine, setup):
    cell = indent(setup, "    ")
    program = (
        f"import os\nos.environ['GIT_ALLOW_PROTOCOL'] = 'none'\ntry:\n{cell}"
        "except subprocess.CalledProcessError:\n    print(os.listdir())\n"
        f"os.environ['GIT_ALLOW_PROTOCOL'] = 'file'\n{setup}print({FILES})"
    )
    assert machine.run(program) == f"[]\n{cloned(machine)}\n"


def cloned(machine):
    """The files of helpers and library, when they come from the clone that the set-up cell makes."""
    return [str(machine.folder / "zero-or-nan" / "src" / name / "__init__.py") for name in ("helpers", "zero_or_nan")]


def unreachable(machine):
    """Whatever asks git for anything fails from now on."""
    machine.variables["GIT_ALLOW_PROTOCOL"] = "none"


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(cell):
    """What a cell printed, its errors included."""
    return plain("".join(output.get("text", "") for output in cell.outputs))


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def setup_cell(notebook):
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert PROJECT.repository in cell.source
    return cell
