"""The wheel and the sdist, and the library as pip installs it: beside torch, and beside a user's own helpers.py.

Both are built here, from a clone of the working tree. With DIST, the folder of a release's wheel and sdist, those very
files are tested, and compared with what is built here.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
import yaml
from machines import PROJECT, Machine, run, working_tree
from packaging.specifiers import SpecifierSet

DIST = os.environ.get("DIST")

# On a machine whose index serves PyTorch for CUDA, torch alone is gigabytes: the first test waits for it.
pytestmark = pytest.mark.timeout(1800)

# Every module that is there already, and every class of torch's, with what their names stand for.
CHANGES = """
import inspect, json, os, sys, torch, warnings

def state():
    modules = {name: module for name, module in sys.modules.items() if module is not sys.modules["__main__"]}
    torches = [module for name, module in modules.items() if name.partition(".")[0] == "torch"]
    classes = [each for module in torches for each in vars(module).values() if inspect.isclass(each)]
    return {name: dict(vars(module)) for name, module in modules.items()} | {each: dict(vars(each)) for each in classes}

before = state()
os.dup2(1, 2)
warnings.simplefilter("error")
filters = list(warnings.filters)
import zero_or_nan
same = warnings.filters == filters
warnings.simplefilter("ignore")  # some names of torch's give a warning when `state` looks at them
after = state()
missing = object()
rebound = [
    f"{place}.{name}"
    for place, names in before.items()
    for name in names.keys() | after[place].keys()
    if names.get(name, missing) is not after[place].get(name, missing)
]
new = {name.partition(".")[0] for name in after.keys() - before.keys() if isinstance(name, str)}
print(json.dumps([rebound, sorted(new - sys.stdlib_module_names), same]))
"""

TYPED = """\
import torch
from torch import Tensor, nn
from zero_or_nan import explain, ignoring

reveal_type(ignoring.backward)
ignoring.grad(torch.ones(()), [], ignored="masked")
ignoring.grad(torch.ones(()), [], ignored="nothing")  # wrong

@explain.on_failure(model=nn.Linear(1, 1))
def step(x: Tensor, n: int = 1) -> Tensor: return x

class Trainer:
    @explain.on_failure
    def step(self) -> float: return 1.0

reveal_type(step)
reveal_type(Trainer().step)
with explain() as report: reveal_type(report.origins)
step(1)  # wrong
explain.on_failure(model=1)  # wrong
"""

TORCH = """\
from typing import Any
from torch import nn as nn
class Tensor: ...
def __getattr__(name: str) -> Any: ...
"""
NN = "class Module: ...\nclass Linear(Module):\n    def __init__(self, inputs: int, outputs: int) -> None: ...\n"
MYPY = ("--strict", "--no-error-summary", "--no-color-output", "--config-file=", "--cache-dir=/dev/null")


def build(machines, name, *options):
    """The wheel and the sdist of the clone, in a folder of their own."""
    to = machines.home / name
    # With the setuptools of this environment, which is pinned and needs no network.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", to, *options, machines.clone)
    return to


def the(pattern, dist):
    (path,) = dist.glob(pattern)
    return path


def unpacked(wheel):
    """Every file of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(sdist):
    """The name of every file of an sdist, from its top."""
    with tarfile.open(sdist) as archive:
        return sorted(each.name.partition("/")[2] for each in archive if each.isfile())


@pytest.fixture(scope="session")
def dist(machines):
    """By `python -m build`: the sdist from the clone, the wheel from the sdist."""
    return Path(DIST).resolve() if DIST else build(machines, "dist")


@pytest.fixture(scope="session")
def wheel(dist):
    return the("*.whl", dist)


@pytest.fixture(scope="session")
def metadata(wheel):
    (text,) = (content for name, content in unpacked(wheel).items() if name.endswith(".dist-info/METADATA"))
    return BytesParser().parsebytes(text)


@pytest.fixture(scope="session")
def line():
    """What the line of the README lets pip install."""
    (found,) = re.findall(r"^\$ pip install (.+)$", (PROJECT.root / "README.md").read_text(), re.MULTILINE)
    return found


@pytest.fixture(scope="session")
def machine(machines, wheel, line):
    """Torch, a user who has a helpers.py, and the wheel; without DIST, what the README's line installs.

    That comes from the repository, which is a clone of this working tree here, and a test compares its wheel.
    """
    made = machines.machine("user")
    made.install(wheel if DIST else line)
    (made.folder / "helpers.py").write_text('whose = "my own"\n')
    return made


def test_the_wheel_holds_every_file_of_the_library_and_its_plugin_and_no_other(wheel):
    content = {name for name in unpacked(wheel) if ".dist-info/" not in name}
    assert {"zero_or_nan/__init__.py", "zero_or_nan/py.typed"} <= content
    assert content == {
        name.removeprefix("src/")
        for name in working_tree()
        if name.startswith(("src/zero_or_nan/", "src/zero_or_nan_pytest/"))
    }


def test_the_sdist_holds_nothing_of_the_book(dist):
    beside = {name for name in packed(the("*.tar.gz", dist)) if not name.startswith("src/zero_or_nan")}
    assert beside == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def test_the_wheel_from_the_checkout_is_the_one_from_the_sdist(machines, wheel):
    assert unpacked(the("*.whl", build(machines, "from the checkout", "--wheel"))) == unpacked(wheel)


def test_the_wheel_says_what_it_is_and_needs(metadata, wheel):
    assert metadata["Name"] == "zero-or-nan"
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.11")
    assert metadata.get_all("Requires-Dist") == ["torch>=2.6"] and metadata.get_all("Provides-Extra") is None
    assert metadata.get_all("License-File") == ["LICENSE"]
    (licence,) = (content for name, content in unpacked(wheel).items() if name.endswith("/licenses/LICENSE"))
    assert licence == (PROJECT.root / "LICENSE").read_bytes()


def test_the_line_of_the_readme_installs_the_library(machine, line, metadata):
    assert line == f"git+{PROJECT.repository}"
    printed = machine.run("import zero_or_nan; print(zero_or_nan.__version__, zero_or_nan.__file__)").split()
    assert printed[0] == metadata["Version"] and printed[1].startswith(str(machine.packages))


def test_pip_installs_nothing_beside_it_but_what_torch_needs(machines, machine, metadata):
    below, _ = machines.torch.installed()
    assert machine.installed()[0] == below | {"zero-or-nan": metadata["Version"]}
    assert "torch" in below and "numpy" not in below


def test_the_example_of_the_readme_is_complete_and_gives_what_it_says(machine, metadata):
    _, section = (
        (PROJECT.root / "README.md").read_text().split("\n## The right gradient from unmodified forward code\n")
    )
    *lines, last = re.search(r"^```python\n(.*?)\n```$", section, flags=re.DOTALL | re.MULTILINE)[1].splitlines()
    expression, says = last.split("  # ")  # the last line says what it gives
    program = "\n".join([*lines, f"print({expression})\n"])
    assert "import torch" in program.splitlines() and "ignoring.backward(loss)" in program
    plain = program.replace("ignoring.backward(loss)", "loss.backward()")
    more = "import helpers, zero_or_nan; print(helpers.whose, zero_or_nan.__version__)"
    given, others, last = machine.run(f"{program}{plain}{more}").splitlines()
    assert given and says.startswith(given) and "with loss.backward(): tensor([2.7183, nan])" in says
    assert others == "tensor([2.7183,    nan])"
    cited = yaml.safe_load((PROJECT.root / "CITATION.cff").read_text())["version"]
    assert last.split() == ["my", "own", metadata["Version"]] and metadata["Version"] == cited


def test_importing_it_changes_nothing_and_says_nothing(machine):
    assert json.loads(machine.run(CHANGES)) == [[], ["zero_or_nan"], True]


def test_a_reader_can_check_it_with_torch_alone(machine):
    """By the command, on the first cases: tests/zero_or_nan/test_selfcheck.py runs all of them."""
    few = "import runpy, sys; from zero_or_nan.selfcheck import cases; del cases.CASES[2:]"
    run = "sys.argv += ['--device', 'cpu']; runpy.run_module('zero_or_nan.selfcheck', run_name='__main__')"
    printed = " ".join(machine.run(f"{few}; {run}").split())
    assert "where over exp contaminated right" in printed and " as recorded. The operators were left out" in printed
    assert "is not installed" in printed


def test_a_strict_type_checker_sees_its_types(machines, machine):
    """PyTorch is a stub, and no other one is there: to read all of it takes mypy half a minute."""
    reader = Machine(machines.home / "typed", machines.variables)
    reader.find(machine.packages)
    for name, text in {"program.py": TYPED, "torch/__init__.pyi": TORCH, "torch/nn.pyi": NN}.items():
        (reader.folder / name).parent.mkdir(exist_ok=True)
        (reader.folder / name).write_text(text)
    command = [sys.executable, "-m", "mypy", *MYPY, f"--python-executable={reader.python}", "program.py"]
    done = subprocess.run(command, cwd=reader.folder, env=reader.variables, capture_output=True, text=True)
    assert done.stderr == ""
    said = done.stdout.replace("torch.", "")
    backward, *of_explain = re.findall(r'Revealed type is "(.*)"', said)
    assert "retain_graph: bool | None =" in backward
    origins = "list[zero_or_nan.explain.report.report.Origin]"
    assert of_explain == ["def (x: Tensor, n: int =) -> Tensor", "def () -> float", origins], said
    wrong = [number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")]
    errors = dict(re.findall(r"(?m)^program.py:(\d+): error: (.*)", said))
    assert [int(number) for number in errors] == wrong, said
    assert 'Argument "ignored" to "grad" has incompatible type' in errors[str(wrong[0])] and len(wrong) == 3
