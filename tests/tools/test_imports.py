"""No file imports, through others, a file that imports it back; imports for annotations alone count too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest
from scratch import ROOT

PACKAGES = {"zero_or_nan": ROOT / "src", "helpers": ROOT / "src", "tools": ROOT}


def modules(name: str, top: Path) -> dict[str, Path]:
    """The files of a package, by the names that they are imported by."""
    files = {file.relative_to(top).with_suffix(""): file for file in (top / name).rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): file for path, file in files.items()}


def imported(name: str, files: dict[str, Path]) -> Iterator[str]:
    """The files of a package that one of them imports."""
    inside = name.split(".") if files[name].stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(files[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) + 1 - node.level] if node.level else []
            whence = ".".join([*above, *filter(None, [node.module])])
            parts = [f"{whence}.{alias.name}" for alias in node.names]
            found = [
                part if part in files else whence for part in parts
            ]  # a name of the file, or a file of the package
        else:
            continue
        yield from (one for one in found if one in files and one != name)


def circles(files: dict[str, Path]) -> list[list[str]]:
    """The groups of files that import each other."""
    graph = networkx.DiGraph((name, one) for name in files for one in imported(name, files))
    found = networkx.strongly_connected_components(graph)
    return sorted(sorted(group) for group in found if len(group) > 1)


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_import_circle(package):
    assert circles(modules(package, PACKAGES[package])) == []


def test_a_circle_is_found_also_where_it_is_for_annotations(tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("from .a import A\n")
    (tmp_path / "house" / "a.py").write_text("from . import b\n")
    (tmp_path / "house" / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A\n"
    )
    (tmp_path / "house" / "c.py").write_text("def late():\n    import house.a\n")
    assert circles(modules("house", tmp_path)) == [["house.a", "house.b"]]


def test_the_library_asks_a_tensors_form_and_does_not_know_the_forms_by_name():
    files = modules("zero_or_nan", ROOT / "src")
    knowing = {name: set(imported(name, files)) for name in files}
    core = "zero_or_nan.ignoring"

    def who_imports(form):
        return {name.removeprefix(f"{core}.") for name, found in knowing.items() if f"{core}.{form}" in found}

    assert who_imports("jagged") == {core}
    of_graphs = {"kinds", "passes", "plan", "steps.boundary", "operators.sharded"}  # which several processes share
    assert who_imports("distributed") == {core} | of_graphs


def test_explain_imports_one_file_of_ignoring():
    files = modules("zero_or_nan", ROOT / "src")
    asked = {one for name in files if name.startswith("zero_or_nan.explain") for one in imported(name, files)}
    assert {one for one in asked if one.startswith("zero_or_nan.ignoring")} == {"zero_or_nan.ignoring.inside"}
