"""The package's docstring is its table of contents: each file imports only from files that are named after it."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "src" / "zero_or_nan" / "explain"


def imported(path):
    """The files of the package that a file imports from, also for annotations."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.level:
            start = path.parents[statement.level - 1].joinpath(*(statement.module or "").split("."))
            for target in [start, *(start / name.name for name in statement.names)]:
                if FOLDER in target.parents and target.with_suffix(".py").is_file():
                    yield target.stem


def test_each_file_imports_only_from_files_that_are_named_after_it():
    contents = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text())).partition("How it works")[2]
    files = {path.stem: path for path in FOLDER.rglob("[!_]*.py")}
    order = [name for name in dict.fromkeys(re.findall(r"`(\w+)`", contents)) if name in files]
    assert set(order) == set(files)
    arrows = [(name, other) for name in order for other in imported(files[name])]
    assert [(name, other) for name, other in arrows if order.index(other) <= order.index(name)] == []
