"""Importing the helpers costs a page nothing, and all that pages import is named and explained."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import helpers

IMPORTED = """
import json, sys, torch, torch.masked, numpy
before = set(sys.modules)
import helpers
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)))
"""


@pytest.mark.slow
def test_importing_the_helpers_imports_only_torch_numpy_and_the_standard_library():
    path = {**os.environ, "PYTHONPATH": str(Path(helpers.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, env=path)
    assert json.loads(done.stdout) == ["helpers", "zero_or_nan"]


def test_all_that_is_imported_for_chapters_is_named():
    imported = {name for name, thing in vars(helpers).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
    assert sorted(helpers.__all__) == sorted(imported - {"annotations"})
