"""Importing the helpers costs a page nothing, and all that pages import is named and explained."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import helpers

HOME = str(Path(helpers.__file__).parents[1])


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {HOME!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().split("\n")[-1])


@pytest.fixture(scope="module", params=[False, True], ids=["script", "notebook"])
def imported(request):
    """What importing the helpers, and with them the library, does to a process; and then the first drawing."""
    return run(
        "import json, sys, types, warnings, numpy, torch, torch.masked\n"
        "notebook = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))\n"
        f"if {request.param}: sys.modules['IPython'] = notebook\n"
        "def state():\n"
        "    shared = warnings, torch, torch.Tensor, torch.autograd, torch.autograd.graph, torch.ops\n"
        "    rebound = [[(name, id(thing)) for name, thing in vars(owner).items()] for owner in shared]\n"
        "    return [str(warnings.filters), sorted(map(str, rebound))]\n"
        "states, modules = [state()], set(sys.modules)\n"
        "import helpers\n"
        "states.append(state())\n"
        "if sys.modules.get('IPython') is notebook: del sys.modules['IPython']\n"
        "added, everything = set(sys.modules) - modules, sorted(sys.modules)\n"
        "roots = sorted({name.partition('.')[0] for name in added} - sys.stdlib_module_names)\n"
        "with helpers.drawing('a line') as axes: axes.set(xlabel='x', ylabel='y')\n"
        "print(json.dumps([states, roots, everything, sorted(sys.modules)]))"
    )


@pytest.mark.slow
def test_importing_the_helpers_imports_only_torch_numpy_and_the_standard_library(imported):
    _, roots, everything, _ = imported
    assert roots == ["helpers", "zero_or_nan"]
    for name in ("IPython", "matplotlib", "ipykernel", "yaml", "bs4"):
        assert name not in everything


@pytest.mark.slow
def test_importing_changes_nothing(imported):
    before, after = imported[0]
    assert before == after


@pytest.mark.slow
def test_matplotlib_is_imported_by_the_first_drawing_and_without_its_global_state(imported):
    assert "matplotlib" in imported[3] and "matplotlib.pyplot" not in imported[3]


def test_all_that_is_imported_for_chapters_is_named():
    imported = {name for name, thing in vars(helpers).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
    assert sorted(helpers.__all__) == sorted(imported - {"annotations"})


def test_all_that_is_offered_is_there_and_explained():
    assert list(helpers.__all__) == sorted(set(helpers.__all__))
    for name in helpers.__all__:
        assert hasattr(helpers, name)
    for name in ("Case", "MASKED", "reference", "ulp_distance", "drawing", "ClaimFailed"):
        assert name in helpers.__all__ and f"`{name}`" in helpers.__doc__
