"""The table of PyTorch's private names, compared with the names that the library uses."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from scratch import ROOT

from zero_or_nan.functions.record import FUNCTIONS
from zero_or_nan.selfcheck import lacking

LIBRARY = ROOT / "src" / "zero_or_nan"
FILES = {file.relative_to(LIBRARY).as_posix(): file.read_text(encoding="utf-8") for file in LIBRARY.rglob("*.py")}
LISTED = {name for names, _, _ in lacking.rows() for name in names}
NOT_LISTED = re.compile(r"torch\.ops\.|\._(raw_)?saved_|\._(asdict|fields|getframe|replace|prepare_inputs)$")
"""Operators, saved tensors, names of Python, and a method of the Trainer that subclasses replace."""


def names_in(tree: ast.Module) -> Iterator[str]:
    """The names of PyTorch in a file. Only the last part is known of an attribute of any object, as in `._version`."""
    known, own, nodes = {"torch": "torch"}, set(), list(ast.walk(tree))
    owners = {node.value for node in nodes if isinstance(node, ast.Attribute)}

    def full(node: ast.AST | None) -> str:
        if isinstance(node, ast.Attribute) and (owner := full(node.value)):
            return f"{owner}.{node.attr}"
        return known.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in nodes:
        match node:
            case ast.ImportFrom(module, aliases, level=0) if module.partition(".")[0] == "torch":
                known |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if full(value):
                known[name] = full(value)
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Attribute(_, name, ast.Store()):
                own.add(name)
    yield from known.values()
    for node in nodes:
        match node:
            case ast.Attribute() if full(node):
                yield from [] if node in owners else [full(node)]
            case ast.Attribute(owner, name) if name not in own and ast.unparse(owner) not in ("self", "cls"):
                yield f".{name}"
            case (
                ast.Call(ast.Name("getattr" | "hasattr"), [owner, ast.Constant(name), *_])
                | ast.Subscript(ast.Call(ast.Name("vars"), [owner]), ast.Constant(name))
                | ast.Call(ast.Name("replace"), [_, owner, ast.Constant(name), *_])
            ) if ast.unparse(owner) != "self":
                yield f".{name}"
            case ast.Constant(str(name)) if re.fullmatch(r"torch(\.\w+)+", name) and name not in FUNCTIONS:
                yield name


USED = defaultdict(set)
for file, text in FILES.items():
    for name in names_in(ast.parse(text)):
        if re.search(r"\._[^\W_]", name) and not NOT_LISTED.search(name):
            USED[name].add(file)


def is_listed(name: str) -> bool:
    """True if the table has a name, an attribute of this name, or what the name is a part of."""
    last = name[name.rindex(".") :]
    return any(listed.endswith(last) or f"{name}.".startswith(f"{listed}.") for listed in LISTED) or is_module(name)


def is_module(name: str) -> bool:
    return any(listed.startswith(f"{name}.") for listed in LISTED)


def test_each_private_name_that_is_used_is_in_the_table():
    assert {name: files for name, files in USED.items() if not is_listed(name)} == {}


def test_each_name_in_the_table_is_used():
    words = {word for file, text in FILES.items() if file != "private.py" for word in re.findall(r"\w+", text)}
    assert {name for name in LISTED if name.rpartition(".")[2] not in words} == set()


def test_each_private_name_is_taken_from_pytorch_in_one_file():
    """An attribute of a tensor, a node or an operator is read where it is needed: a call for it would take time."""
    several = {name: files for name, files in USED.items() if len(files) > 1 and not name.startswith(".")}
    assert {name: files for name, files in several.items() if not is_module(name)} == {}


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older releases lack names of newer features")
def test_this_pytorch_lacks_none():
    assert lacking.lacking() == []


def test_what_is_gone_is_lacking_also_in_modules_that_are_not_imported(monkeypatch):
    table = (
        "torch._C._a or _b, _is_tracing | x | y\ntorch.fx._a | x | y\ntorch.Tensor._a | x | y\ntorch._a._b | x | z\n"
    )
    monkeypatch.setattr(lacking, "TABLE", table)
    told = [line.removeprefix(f"PyTorch {torch.__version__} lacks ") for line in lacking.lacking()]
    gone = ["torch._C._a and torch._C._b", "torch.fx._a", "torch.Tensor._a"]
    assert told == [*(f"{name} (x): y" for name in gone), "torch._a._b (x): z"]


def test_an_import_that_fails_names_what_is_lacking():
    program = "import torch\ndel torch._C._is_tracing\nimport zero_or_nan"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.splitlines()
    assert [line for line in told if "Install another release of PyTorch, or a newer zero_or_nan." in line]
    assert [line for line in told if "lacks torch._C._is_tracing (" in line]
