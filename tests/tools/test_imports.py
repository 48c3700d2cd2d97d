"""No file imports, through others, a file that imports it back; imports for annotations alone count too."""

import ast
from collections import Counter
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
            parts = [f"{whence}.{alias.name}" for alias in node.names]  # names of the file, or files of the package
            found = [part if part in files else whence for part in parts]
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


LAYERS = ["masks", "functions", "ignoring.engine", "ignoring.extras"]
"""The folders of `ignoring`. Each imports only from those before it."""


def layer_of(name: str) -> int | None:
    return next((i for i, layer in enumerate(LAYERS) if f"{name}.".startswith(f"zero_or_nan.{layer}.")), None)


def test_a_folder_of_the_library_imports_only_from_those_before_it():
    files = modules("zero_or_nan", ROOT / "src")
    pairs = [(name, one) for name in files for one in imported(name, files)]
    inside = [(name, one, here, layer_of(one)) for name, one in pairs if (here := layer_of(name)) is not None]
    assert {here for _, _, here, _ in inside} == set(range(len(LAYERS)))
    others = {(name, one) for name, one, here, there in inside if there is None or there > here}
    assert others == {("zero_or_nan.ignoring.extras.counts", "zero_or_nan.replacing")}  # which imports nothing


def test_explain_imports_one_file_of_ignoring():
    files = modules("zero_or_nan", ROOT / "src")
    asked = {one for name in files if name.startswith("zero_or_nan.explain") for one in imported(name, files)}
    assert {one for one in asked if one.startswith("zero_or_nan.ignoring")} == {"zero_or_nan.ignoring.inside"}


def test_no_extra_imports_another_one():
    files = modules("zero_or_nan", ROOT / "src")
    extras = "zero_or_nan.ignoring.extras"

    def extra_of(name: str) -> str:
        return name.removeprefix(f"{extras}.").partition(".")[0] if name.startswith(f"{extras}.") else ""

    pairs = {(extra_of(name), extra_of(one)) for name in files for one in imported(name, files)}
    assert {pair for pair in pairs if all(pair) and pair[0] != pair[1]} == set()


def test_no_folder_has_more_than_20_files():
    library = ROOT / "src" / "zero_or_nan"
    files = [file for layer in ("masks", "functions", "ignoring") for file in (library / layer).rglob("*.py")]
    found = Counter(file.parent for file in files)
    assert not {folder for folder, count in found.items() if count > 20}
