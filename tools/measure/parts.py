"""The three parts of the code that are measured by their tests."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..project import Problem, Project


@dataclass(frozen=True)
class Part:
    """Code and what tests it, as paths from the top of the checkout.

    `tests` are files and folders, doctests among them. Those that install the wheel run another copy of the code.
    """

    name: str
    source: str
    tests: tuple[str, ...]


PARTS = (
    Part("helpers", "src/helpers", ("src/helpers", "tests/helpers")),
    Part("library", "src/zero_or_nan", ("src/zero_or_nan", "tests/zero_or_nan")),
    Part("tools", "tools", ("tests/tools", "tests/site")),
)


def chosen(names: tuple[str, ...]) -> list[Part]:
    """The parts of these names, or all.

    Raises:
        Problem: when there is no such part.
    """
    unknown = set(names) - {part.name for part in PARTS}
    if unknown:
        raise Problem(
            f"no part of the code is called {', '.join(sorted(unknown))}; the parts are "
            f"{', '.join(p.name for p in PARTS)}"
        )
    return [part for part in PARTS if not names or part.name in names]


def files(project: Project, *under: str) -> list[str]:
    """The files that belong to the checkout, sorted: in git, or new and not ignored; all, or those under some paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *under],
        cwd=project.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = {name for name in listed.stdout.split("\0") if name and _is_plain(project.root / name)}
    return sorted(paths)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
