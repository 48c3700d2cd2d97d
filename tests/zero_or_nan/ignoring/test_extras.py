"""The extras can be deleted: then the rest of the library still works."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

from scratch import ROOT

LIBRARY = ROOT / "src" / "zero_or_nan"
EXTRAS = sorted(path.stem for path in (LIBRARY / "ignoring" / "extras").iterdir() if path.stem[0] != "_")

PROGRAM = """
import torch
from zero_or_nan import ignoring

x = torch.tensor([1.0, 100.0], requires_grad=True)
ignoring.backward(torch.where(x < 50, x.exp(), torch.zeros(2)).sum())
assert torch.equal(x.grad, torch.tensor([1.0]).exp() * torch.tensor([1.0, 0.0]))

layer = torch.nn.Linear(2, 1)
ignoring.backward(layer(torch.tensor([[1.0, 2.0], [torch.nan, 3.0]]))[:1].sum())
assert layer.weight.grad.tolist() == [[1, 2]]

y = torch.ones(2, requires_grad=True)
(slope,) = ignoring.grad((y**3).sum(), [y], create_graph=True)
assert ignoring.grad(slope.sum(), [y])[0].tolist() == [6, 6]
"""


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
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
