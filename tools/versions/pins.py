"""Updates the pins. Newer versions are tried in a copy of the checkout, and kept only if every check passes there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..project import Problem, Project, write
from . import npm

GATE = ("book", "lint")
"""The make targets that must pass with new pins: every claim, the site that newer tools render, and a newer linter."""

_NOT_COPIED = (".*", "_build", "build", "notebooks", "node_modules", "__pycache__", "*.egg-info")


def pins(project: Project) -> None:
    """Compile `requirements.txt` again, and replace the file if every check passes with the new versions.

    Until then, the checkout is not touched. A copy in the temporary folder gets the new file, and make creates an
    environment for it. The copy has no cache, so every chapter runs.

    Raises:
        Problem: if the versions can't be compiled, or if a check fails; with the versions that differ.
    """
    target = project.root / "requirements.txt"
    before = target.read_text(encoding="utf-8")
    with _copied(project.root) as copy:
        after = compiled(copy)
        moved = changes(before, after)
        if before == after:
            print("nothing to do: every pin is already the newest version that fits")
            return
        print("trying these newer versions:", *moved, sep="\n  ", flush=True)
        write(copy / target.name, after)
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
        done = subprocess.run(["make", *GATE, f"PYTHON={sys.executable}"], cwd=copy, env=outside)
    if done.returncode:
        raise Problem(
            f"`make {' '.join(GATE)}` fails with the newer pins; its output is above. requirements.txt is unchanged.\n"
            "Fix the cause, or limit the version of a package in pyproject.toml. These pins would change:\n  "
            + "\n  ".join(moved)
        )
    write(target, after)
    print(f"every check passed; these pins in {target.name} changed:", *moved, sep="\n  ")
    if {"torch", "matplotlib"} & {line.split()[0] for line in moved}:
        print("Now run make record: a build compares outputs only if they were recorded with the same versions.")


def outdated(project: Project) -> None:
    """Print, as Markdown, the versions that `make pins` would try, and the packages of the site that are outdated."""
    with _copied(project.root) as copy:
        after = compiled(copy)
    moved = changes((project.root / "requirements.txt").read_text(encoding="utf-8"), after)
    print("### Pins\n")
    print(*([f"- {line}" for line in moved] or ["Every pin is the newest version that fits."]), sep="\n")
    print("\n### Packages of the site\n")
    print(*([f"- {line}" for line in npm.outdated(project)] or ["Every package has its newest version."]), sep="\n")


def compiled(root: Path) -> str:
    """The exact versions of everything that `pyproject.toml` requires: the newest versions that fit together.

    Raises:
        Problem: if no versions fit together, or the index can't be reached; with pip-compile's own message.
    """
    with TemporaryDirectory() as folder:
        # Into a new file, because pip-compile prefers the versions in an existing file.
        output = Path(folder) / "requirements.txt"
        command = f"{sys.executable} -m piptools compile --quiet --strip-extras --allow-unsafe --no-header"
        # The file is for every machine, so it must not contain this machine's settings of pip.
        command += " --no-emit-find-links --no-emit-index-url --no-emit-trusted-host"
        wanted = "\n".join(requirements_of(root / "pyproject.toml"))
        done = subprocess.run(
            [*command.split(), "-o", str(output), "-"], cwd=root, capture_output=True, text=True, input=wanted
        )
        if done.returncode:
            raise Problem(f"pip-compile can't find the newest versions:\n{done.stderr.strip()[-2000:]}")
        return portable(output.read_text(encoding="utf-8"))


def requirements_of(settings: Path) -> list[str]:
    """The requirements in the dependency groups of a `pyproject.toml`. pip-compile can't read groups, only extras."""
    groups = tomllib.loads(settings.read_text(encoding="utf-8"))["dependency-groups"]
    return [requirement for group in groups.values() for requirement in group]


def portable(requirements: str) -> str:
    """The requirements without the mark of a build of PyTorch for one kind of machine.

    >>> portable("sympy==1.14.0\\ntorch==2.13.0+cpu\\n")
    'sympy==1.14.0\\ntorch==2.13.0\\n'
    """
    return re.sub(r"(?m)^(torch==[\d.]+)\+\w+$", r"\1", requirements)


def changes(before: str, after: str) -> list[str]:
    """A line for every package whose pin changed, is new, or was removed.

    >>> changes("a==1\\nb==1\\n    # via a\\n", "a==2\\nc==1\\n")
    ['a 1 -> 2', 'b 1 -> gone', 'c new -> 1']
    """
    old, new = pinned(before), pinned(after)
    return [
        f"{name} {old.get(name, 'new')} -> {new.get(name, 'gone')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def pinned(requirements: str) -> dict[str, str]:
    """The version of every package that a requirements file pins."""
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", requirements))


@contextmanager
def _copied(root: Path) -> Iterator[Path]:
    """A copy of the checkout, without built and installed files, while the block runs."""
    with TemporaryDirectory(prefix="pins-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        yield copy
