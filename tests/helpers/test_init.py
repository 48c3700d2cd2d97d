"""Importing the helpers costs a page nothing."""

import ast
import sys
from pathlib import Path

import helpers


def test_importing_the_helpers_imports_only_torch_numpy_and_the_standard_library():
    found = set()
    for path in Path(helpers.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # imports inside of functions run when called
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    assert found - sys.stdlib_module_names == {"numpy", "torch", "zero_or_nan"}
