"""The extras can be deleted: then the tests of the rest still pass."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scratch import ROOT

LIBRARY = ROOT / "src" / "zero_or_nan"
EXTRAS = sorted(path.stem for path in (LIBRARY / "ignoring" / "extras").iterdir() if path.stem[0] != "_")

REST = ("ignoring/test_masks.py", "ignoring/test_passes.py", "explain/test_printed.py")
"""Tests of what everybody needs."""


def without_imports_of(extra: str, text: str) -> str:
    """The code of an `__init__`, without the imports of an extra."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            is_inside = f"{node.module}.".startswith(f"extras.{extra}.")
            node.names = [alias for alias in node.names if not is_inside and alias.name != extra]
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.names]
    return ast.unparse(tree)


def delete(extra: str, ignoring: Path) -> None:
    found = ignoring / "extras" / extra
    shutil.rmtree(found) if found.is_dir() else found.with_suffix(".py").unlink()
    (ignoring / f"{extra}.py").unlink(missing_ok=True)
    for init in (ignoring / "__init__.py", ignoring / "extras" / "__init__.py"):
        init.write_text(without_imports_of(extra, init.read_text()))


def test_the_rest_works_without_the_extras(tmp_path: Path):
    """One run is enough for all of them, because no extra imports another one."""
    copy = tmp_path / "zero_or_nan"
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for extra in EXTRAS:
        delete(extra, copy / "ignoring")
    tests = [f"tests/zero_or_nan/{name}" for name in REST]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *tests]
    paths = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=paths, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
