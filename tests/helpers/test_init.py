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


def test_importing_the_helpers_imports_only_torch_numpy_and_the_standard_library():
    added, everything = run(
        "import json, numpy, torch, torch.masked\n"
        "before = set(sys.modules)\n"
        "import helpers\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps([sorted(roots - sys.stdlib_module_names), sorted(sys.modules)]))"
    )
    assert added == ["helpers", "zero_or_nan"]
    for name in ("IPython", "matplotlib", "ipykernel", "yaml", "bs4"):
        assert name not in everything


def test_all_that_is_imported_for_chapters_is_named():
    imported = {name for name, thing in vars(helpers).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
    assert sorted(helpers.__all__) == sorted(imported - {"annotations"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["helpers", "zero_or_nan"])
@pytest.mark.parametrize("kernel", [False, True], ids=["script", "notebook"])
def test_importing_changes_nothing(name, kernel):
    before, after = run(
        "import json, sys, types, warnings, numpy, torch, torch.masked\n"
        "shell = types.SimpleNamespace(kernel=object())\n"
        f"sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell if {kernel} else None)\n"
        "def state():\n"
        "    shared = warnings, torch, torch.Tensor, torch.autograd, torch.autograd.graph, torch.ops\n"
        "    rebound = [[(name, id(thing)) for name, thing in vars(owner).items()] for owner in shared]\n"
        "    return [str(warnings.filters), sorted(map(str, rebound))]\n"
        "before = state()\n"
        f"import {name}\n"
        "print(json.dumps([before, state()]))"
    )
    assert before == after


def test_matplotlib_is_imported_by_the_first_drawing_and_without_its_global_state():
    before, after, state = run(
        "import json, helpers\n"
        "before = 'matplotlib' in sys.modules\n"
        "with helpers.drawing('a line') as axes: axes.set(xlabel='x', ylabel='y')\n"
        "print(json.dumps([before, 'matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules]))"
    )
    assert (before, after, state) == (False, True, False)


def test_all_that_is_offered_is_there_and_explained():
    assert list(helpers.__all__) == sorted(set(helpers.__all__))
    for name in helpers.__all__:
        assert hasattr(helpers, name)
    for name in ("Case", "MASKED", "reference", "ulp_distance", "drawing", "ClaimFailed"):
        assert name in helpers.__all__ and f"`{name}`" in helpers.__doc__
