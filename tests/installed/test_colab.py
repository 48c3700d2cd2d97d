"""Every notebook as Colab runs it: alone in an empty folder, beside torch, without the helpers.

The set-up cell is the one that readers run, and does what it does for them: pip clones the repository, builds the
helpers and installs them. Only git is told, through its environment, that the repository lies in a clone of this
working tree, so that what is tested is what is about to be committed.

Needs git, the package index for torch and for what builds the helpers, and room for one more PyTorch in the temporary
folder while it runs. Where one is missing these tests fail.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from packaging.requirements import Requirement

from tools.project import Project

PROJECT = Project(Path(__file__).parents[2])
NOTEBOOKS = [PROJECT.notebook(chapter) for chapter in PROJECT.chapters]
URL = f"git+{PROJECT.repository}@{PROJECT.branch}"
MIME = "application/vnd.zero-or-nan+json"

# On a machine whose index serves PyTorch for CUDA, torch alone is gigabytes: the first test waits for it.
pytestmark = pytest.mark.timeout(1800)


class Machine:
    """One Python environment and one empty folder to work in.

    Args:
        home: where both lie.
        variables: the environment variables of whatever runs on it.
    """

    def __init__(self, home, variables):
        self.prefix = home / "environment"
        self.folder = home / "content"
        self.folder.mkdir(parents=True)
        self.python = self.prefix / "bin" / "python"
        self.variables = variables | {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}

    @property
    def packages(self):
        """Its site-packages."""
        scheme = {"base": str(self.prefix), "platbase": str(self.prefix)}
        return Path(sysconfig.get_path("purelib", "venv", scheme))

    def installed(self):
        """What an import finds on it, by name and version."""
        paths = [str(self.packages), *(path.read_text().strip() for path in self.packages.glob("fresh.pth"))]
        return sorted((found.name, found.version) for found in metadata.distributions(path=paths))

    def run(self, *command):
        return run(self.python, *command, cwd=self.folder, env=self.variables)

    def kernel(self):
        """A manager of kernels of this environment, whatever else is installed on the computer."""
        launch = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        spec = {"argv": launch, "language": "python", "display_name": "Python 3"}
        specs = self.prefix.parent / "kernels"
        (specs / "python3").mkdir(parents=True, exist_ok=True)
        (specs / "python3" / "kernel.json").write_text(json.dumps(spec))
        manager = KernelSpecManager(kernel_dirs=[str(specs)], ensure_native_kernel=False)
        return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=manager)

    def execute(self, notebook):
        """Run a notebook's cells in place, one after another, and stop at the first that raises: return its error."""
        return asyncio.run(self._execute(notebook))

    async def _execute(self, notebook):
        client = NotebookClient(
            notebook, km=self.kernel(), timeout=300, resources={"metadata": {"path": str(self.folder)}}
        )
        async with client.async_setup_kernel(env=self.variables, cleanup_kc=True):
            for index, cell in enumerate(notebook.cells):
                try:
                    await client.async_execute_cell(cell, index)
                except CellExecutionError as error:
                    return plain(str(error))
        return ""


class Colab:
    """A fresh Colab, as often as one is needed.

    Installs torch, numpy, matplotlib and the kernel once, at the versions that the book is pinned to. Every machine
    gets an empty environment on top of that: pip installs into the machine's own, and can't change the one below.
    """

    def __init__(self, home):
        self._home = home
        clone = home / "clone"
        if not shutil.which("git"):
            pytest.fail("git is missing: the notebooks' set-up cell installs the helpers with it", pytrace=False)
        clone_working_tree(clone)
        ours = ("PYTHON", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV", "GIT_", "JUPYTER", "JPY_", "IPYTHON", "MPL")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{clone.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": PROJECT.repository,
            "GIT_ALLOW_PROTOCOL": "file",  # should the rule above not match: an error, not the published helpers
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
            "MPLCONFIGDIR": str(home / "matplotlib"),
        }
        self.fresh = Machine(home / "fresh", self.variables)
        run(sys.executable, "-m", "venv", "--without-pip", self.fresh.prefix)
        # pip from here, into there: quicker than to let venv unpack one first.
        pins = ("--constraint", PROJECT.root / "requirements.txt")
        wanted = ("torch", "numpy", "matplotlib", "ipykernel", "pip")
        pip = (sys.executable, "-m", "pip", "--python", self.fresh.python)
        hint = "Is the package index within reach?"
        run(*pip, "install", "--quiet", "--no-compile", *pins, *wanted, env=self.variables, hint=hint)
        # Imported once, so that what is compiled now is compiled for all machines.
        once = "import ipykernel.kernelapp, matplotlib.pyplot, pip._internal.commands.install, torch, torch.masked"
        self.torch = json.loads(self.fresh.run("-c", f"import json; {once}; print(json.dumps({ABOUT_TORCH}))"))

    def machine(self, name):
        """A machine with nothing but that on it. What is installed there, no other machine sees."""
        made = Machine(self._home / name, self.variables)
        run(sys.executable, "-m", "venv", "--without-pip", made.prefix)
        (made.packages / "fresh.pth").write_text(f"{self.fresh.packages}\n")
        return made


ABOUT_TORCH = "[torch.__version__, torch.__file__, __import__('os').stat(torch.__file__).st_mtime_ns]"


@dataclass(frozen=True)
class Run:
    """A notebook that was run on a machine of its own.

    Args:
        notebook: with its outputs.
        error: of the cell that stopped it, or nothing.
        torch: its version, file and age, as the kernel saw them when all cells were through.
        helpers: the file that the kernel had imported as `helpers` by then.
        before: what was installed on the machine.
        after: the same, once the notebook was through.
        machine: where it ran.
    """

    notebook: nbformat.NotebookNode
    error: str
    torch: list
    helpers: str
    before: list
    after: list
    machine: Machine


def play(colab, path):
    """Run one notebook on a machine that has seen nothing before it."""
    machine = colab.machine(path.stem)
    shutil.copy(path, machine.folder)
    before = machine.installed()
    notebook = nbformat.read(machine.folder / path.name, as_version=4)
    ask = f"import json, sys, torch; print(json.dumps([{ABOUT_TORCH}, sys.modules['helpers'].__file__]))"
    asked = nbformat.from_dict(notebook)
    asked.cells.append(nbformat.v4.new_code_cell(ask))
    error = machine.execute(asked)
    answer = asked.cells.pop()
    torch, helpers = [], ""
    if error:
        error = f"{path.name} stops:\n{error}\nThe set-up cell printed:\n{printed(setup_cell(asked)) or '(nothing)'}"
    else:
        torch, helpers = json.loads(printed(answer))
    return Run(asked, error, torch, helpers, before, machine.installed(), machine)


@pytest.fixture(scope="session")
def colab():
    with tempfile.TemporaryDirectory(prefix="colab-") as home:
        yield Colab(Path(home).resolve())


@pytest.fixture(scope="session")
def wheel(colab):
    """The helpers as pip builds them from the repository."""
    colab.fresh.run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", colab.fresh.folder, URL)
    (path,) = colab.fresh.folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def runs(colab, request):
    """The selected notebooks, each being run: two at a time, since a kernel keeps one processor busy."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    selected = {spec.params.get("path") for spec in params if spec is not None}
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(play, colab, path) for path in NOTEBOOKS if path in selected}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def through(runs, path):
    """A run that came to its end; what it left behind is of no interest otherwise."""
    run = runs[path].result()
    if run.error:
        pytest.fail(f"{path.name} does not run to its end", pytrace=False)
    return run


def test_there_is_one_notebook_for_each_chapter_and_no_other():
    assert NOTEBOOKS and sorted(PROJECT.notebooks.glob("*.ipynb")) == sorted(NOTEBOOKS)


def test_a_fresh_machine_has_torch_at_its_pin_and_no_helpers(colab):
    assert colab.torch[0].partition("+")[0] == pinned("torch")
    assert ("pip", pinned("pip")) in colab.fresh.installed()
    assert "zero-or-nan" not in dict(colab.fresh.installed())
    assert not (colab.fresh.packages / "helpers").exists()


def test_a_notebook_runs_to_its_end(runs, path):
    run = runs[path].result()
    if run.error:
        pytest.fail(run.error, pytrace=False)
    assert not [output for output in outputs(run.notebook) if output.output_type == "error"]
    assert all(cell.execution_count for cell in run.notebook.cells if cell.cell_type == "code")


def test_every_claim_holds_and_can_be_read(through):
    shown = [output.data for output in outputs(through.notebook) if MIME in output.get("data", {})]
    facts = [data[MIME] for data in shown if data[MIME]["type"] in ("claim", "verdict")]
    for fact in facts:
        assert fact["holds"] is True, json.dumps(fact, indent=2)
    assert all(data["text/html"] for data in shown)
    for cell in through.notebook.cells:
        if cell.cell_type == "code" and re.search(r"^case\.(claim|verdict)\(", cell.source, flags=re.MULTILINE):
            assert any(MIME in output.get("data", {}) for output in cell.outputs), f"shows no claim:\n{cell.source}"


def test_the_helpers_come_from_the_environment(through):
    assert through.helpers == str(through.machine.packages / "helpers" / "__init__.py")


def test_nothing_but_the_helpers_is_installed(through):
    assert "zero-or-nan" not in dict(through.before)
    assert [entry for entry in through.after if entry[0] != "zero-or-nan"] == through.before


def test_torch_stays_as_it_is(colab, through):
    assert through.torch == colab.torch


def test_the_setup_cell_does_nothing_where_the_helpers_are(colab, wheel):
    machine = colab.machine("present")
    machine.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    machine.variables["GIT_ALLOW_PROTOCOL"] = "none"  # whatever asks git for anything says so
    before = machine.installed()
    watch = "calls = []; get_ipython().register_magic_function(calls.append, 'line', 'pip')"
    for source in {setup_cell(nbformat.read(path, as_version=4)).source for path in NOTEBOOKS}:
        cells = [nbformat.v4.new_code_cell(text) for text in (watch, source, "print(calls, helpers.__name__)")]
        assert machine.execute(nbformat.v4.new_notebook(cells=cells)) == ""
        assert cells[1].outputs == []
        assert printed(cells[2]) == "[] helpers\n"
    assert machine.installed() == before


def test_the_wheel_has_all_files_of_the_helpers_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"helpers/style.css", "helpers/py.typed", "helpers/__init__.py"} <= packed
    assert packed == {name.removeprefix("src/") for name in working_tree() if name.startswith("src/helpers/")}


def test_the_wheel_needs_only_what_colab_has(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(name).decode())
    needs = [Requirement(line) for line in fields.get_all("Requires-Dist")]
    always = {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
    assert always == {"torch", "numpy", "matplotlib"}


def pinned(name):
    """The version in requirements.txt."""
    return re.search(rf"^{name}==(\S+)", (PROJECT.root / "requirements.txt").read_text(), flags=re.MULTILINE)[1]


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(cell):
    """What a cell printed, its errors included."""
    return plain("".join(output.get("text", "") for output in cell.outputs))


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def setup_cell(notebook):
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert "import helpers" in cell.source and f'"{URL}"' in cell.source
    return cell


def working_tree():
    """Every file that is committed or could be, by its path in the repository."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=PROJECT.root)
    return [name for name in listed.split("\0") if (PROJECT.root / name).is_file()]


def clone_working_tree(to):
    """A repository with one commit: the working tree as it is, on the branch that readers get."""
    for name in working_tree():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT.root / name, to / name)
    git = ("git", "-C", to, "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgSign=false")
    run("git", "init", "--quiet", "--template=", f"--initial-branch={PROJECT.branch}", to)
    run(*git, "add", "--all", "--force")
    run(*git, "commit", "--quiet", "--no-verify", "--message", "the working tree")


def run(*command, cwd=None, env=None, hint=""):
    """What a command prints; the test fails, with the command's own words, when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        pytest.fail(f"{' '.join(map(str, command))}\nexits {done.returncode}:\n{said}{hint}", pytrace=False)
    return done.stdout
