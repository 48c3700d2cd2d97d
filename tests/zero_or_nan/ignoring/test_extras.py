"""The extras can be deleted: then a short program still runs."""

import ast
import os
import shutil
import subprocess
import sys

from scratch import ROOT

PROGRAM = """
import torch
from zero_or_nan import explain, ignoring
assert not hasattr(ignoring, "counting")
x = torch.tensor([1.0, 100.0], requires_grad=True)
with explain() as report:
    torch.where(x < 50, x.exp(), 0).sum().backward()
x.grad = None
ignoring.backward(torch.where(x < 50, x.exp(), 0).sum())
print(x.grad[1].item(), *(f"{origin.kind} {origin.fixed}" for origin in report))
"""


def without(extras, text):
    """The code of an `__init__`, without the imports of the extras."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            is_inside = f"{node.module}.".startswith(tuple(f"extras.{extra}." for extra in extras))
            node.names = [alias for alias in node.names if not is_inside and alias.name not in extras]
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.names]
    return ast.unparse(tree)


def test_the_rest_works_without_the_extras(tmp_path):
    """One run is enough for all of them, because no extra imports another one."""
    shutil.copytree(ROOT / "src" / "zero_or_nan", tmp_path / "zero_or_nan")
    ignoring = tmp_path / "zero_or_nan" / "ignoring"
    extras = [path.stem for path in (ignoring / "extras").iterdir() if path.stem[0] != "_"]
    for init in (ignoring / "__init__.py", ignoring / "extras" / "__init__.py"):
        init.write_text(without(extras, init.read_text()))
    for extra in extras:
        for path in [ignoring / f"{extra}.py", *(ignoring / "extras").glob(f"{extra}*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    paths = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=paths, text=True, capture_output=True)
    assert done.stdout == "0.0 contaminated True\n", done.stderr
