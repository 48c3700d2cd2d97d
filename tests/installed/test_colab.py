"""Every notebook as Colab runs it: alone in an empty folder, beside torch, without library and helpers.

The set-up cell is the one that readers run, and does what it does for them: git clones the repository, and nothing is
installed. One notebook is run, and what all others import is imported in one process. `make colab` runs every notebook.
"""

import ast
import json
import re
import shutil
from textwrap import indent

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from machines import PROJECT, Machine, commit
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from sample import WHOLE

NOTEBOOKS = [PROJECT.notebook(chapter) for chapter in PROJECT.chapters]
PLAYED = [path for path in NOTEBOOKS if WHOLE or path.stem == "where-over-exp"]
MIME = "application/vnd.zero-or-nan+json"
ABOUT_TORCH = "[torch.__version__, torch.__file__, __import__('os').stat(torch.__file__).st_mtime_ns]"
FILES = "[__import__(name).__file__ for name in ('helpers', 'zero_or_nan')]"

# On a machine whose index serves PyTorch for CUDA, torch alone is gigabytes: the first test waits for it.
pytestmark = pytest.mark.timeout(1800)


def play(machine, path):
    """Run one notebook on a machine that has seen nothing before it: its cells, and what its kernel has imported."""
    shutil.copy(path, machine.folder)
    notebook = nbformat.read(machine.folder / path.name, as_version=4)
    ask = f"import json, torch; print(json.dumps([{ABOUT_TORCH}, {FILES}]))"
    notebook.cells.append(nbformat.v4.new_code_cell(ask))
    folder = {"metadata": {"path": str(machine.folder)}}
    client = NotebookClient(notebook, km=kernel(machine), timeout=300, resources=folder)
    try:
        client.execute(env=machine.variables, cleanup_kc=True)
    except CellExecutionError as error:
        said = printed(setup_cell(notebook))
        pytest.fail(f"{path.name} stops:\n{error}\nThe set-up cell printed:\n{said}", pytrace=False)
    return notebook, *json.loads(printed(notebook.cells.pop()))


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
def setup():
    """What the set-up cell does; it is one and the same everywhere."""
    (source,) = {setup_cell(nbformat.read(path, as_version=4)).source for path in NOTEBOOKS}
    return source + "\n"


def test_all_that_any_notebook_imports_is_there_once_the_set_up_cell_ran(machine, setup):
    cells = [cell.source for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells
             if cell.cell_type == "code"]  # fmt: skip
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell))]
    every = sorted({ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)})
    assert len(every) > 30 and any("helpers" in statement for statement in every)
    assert machine.run("\n".join([setup, *every, f"print({FILES})"])) == f"{cloned(machine)}\n"


@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_clone_and_its_claims_hold_and_nothing_is_installed(machine, path, torch):
    before = machine.installed()
    notebook, torch_now, files = play(machine, path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code) and printed(setup_cell(notebook)) == ""
    assert files == cloned(machine) and torch_now == torch and machine.installed() == before
    assert [each.name for each in machine.folder.iterdir() if each.suffix != ".ipynb"] == ["zero-or-nan"]
    for cell in code:
        shown = [output.data for output in cell.outputs if MIME in output.get("data", {})]
        for data in shown:
            assert data[MIME].get("holds", True) is True and data["text/html"], json.dumps(data[MIME], indent=2)
        if re.search(r"^case\.(claim|verdict)\(", cell.source, flags=re.MULTILINE):
            assert shown, f"shows no claim:\n{cell.source}"


@pytest.fixture(scope="module")
def stub(machines):
    """A repository whose helpers and library import nothing. The set-up cell is the same for it, and takes no time."""
    for name, code in {"helpers": "class Case: ...\n", "zero_or_nan": "ignoring = None\n"}.items():
        (machines.home / "stub" / "src" / name).mkdir(parents=True)
        (machines.home / "stub" / "src" / name / "__init__.py").write_text(code)
    commit(machines.home / "stub")
    return machines.home / "stub"


@pytest.fixture
def bare(machines, stub, request):
    """A machine without packages, on which git finds the stub."""
    return Machine(
        machines.home / request.node.name,
        machines.variables | {"GIT_CONFIG_KEY_0": f"url.{stub.as_uri()}.insteadOf"},
    )


def test_the_set_up_cell_does_nothing_where_both_are_there(bare, stub, setup):
    bare.find(stub / "src")
    unreachable(bare)
    assert bare.run(f"import sys\nbefore = list(sys.path)\n{setup}print(sys.path == before)") == "True\n"
    assert list(bare.folder.iterdir()) == []


def test_helpers_and_a_library_of_the_readers_own_are_not_taken_for_the_books(bare, stub, setup):
    (bare.folder / "helpers.py").write_text("")
    shutil.copytree(stub / "src" / "zero_or_nan", bare.packages / "zero_or_nan")
    program = f"import helpers\n{setup}from helpers import Case\nprint({FILES})"
    assert bare.run(program) == f"{cloned(bare)}\n"


def test_a_set_up_without_network_leaves_nothing_and_works_once_there_is_one_and_after_a_restart(bare, setup):
    cell = indent(setup, "    ")
    program = (
        f"import os\nos.environ['GIT_ALLOW_PROTOCOL'] = 'none'\ntry:\n{cell}"
        "except subprocess.CalledProcessError:\n    print(os.listdir())\n"
        f"os.environ['GIT_ALLOW_PROTOCOL'] = 'file'\n{setup}{setup}print({FILES})"
    )
    assert bare.run(program) == f"[]\n{cloned(bare)}\n"
    unreachable(bare)
    again = f"{setup}{setup}print(sys.path.count(str(book / 'src')), {FILES})"
    assert bare.run(again) == f"1 {cloned(bare)}\n"


def cloned(machine):
    """The files of helpers and library, when they come from the clone that the set-up cell makes."""
    return [str(machine.folder / "zero-or-nan" / "src" / name / "__init__.py") for name in ("helpers", "zero_or_nan")]


def unreachable(machine):
    """Whatever asks git for anything fails from now on."""
    machine.variables["GIT_ALLOW_PROTOCOL"] = "none"


def printed(cell):
    """What a cell printed, without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", "".join(output.get("text", "") for output in cell.outputs))


def setup_cell(notebook):
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert PROJECT.repository in cell.source
    return cell
