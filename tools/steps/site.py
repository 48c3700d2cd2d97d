"""Whether the site is as its sources have it, and the digest that tells two sites apart."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from ..project import Project
from .made import Made, digest
from .origin import origin

COVERED = "all files of _build/html but .buildinfo"
"""What the site's digest covers. `.buildinfo` is Sphinx's note to itself, of settings and not of what is shown."""

_ELSEWHERE = {"_build", "__pycache__", "node_modules", "notebooks"}


class Site:
    """The built site, and what it was built from.

    Args:
        project: the checkout, as it is when the build begins.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._made = Made(project)
        self._name = project.site.relative_to(project.root).as_posix()
        self._source = _source(project)

    def is_current(self) -> bool:
        """Whether the site is what a build would make of it."""
        return self._made.is_current(self._name, self._source, self.digest())

    def is_intact(self) -> bool:
        """Whether the site is as the last build left it: nobody changed it since, and no build was interrupted."""
        return self._made.is_intact(self._name, self.digest())

    def remember(self) -> None:
        """Note that the site was just made from these sources."""
        self._made.remember(self._name, self._source, self.digest())
        self._made.save()

    def digest(self) -> str:
        """SHA-256 over what `sha256sum` says of every file that is `COVERED`, in the order of their paths' bytes."""
        site = self._project.site
        files = {f"./{path.relative_to(site).as_posix()}": path for path in site.rglob("*") if path.is_file()}
        files.pop("./.buildinfo", None)
        lines = (f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def _source(project: Project) -> str:
    """Of every file of the checkout that a page could show, of where it comes from, and of what is installed."""
    tools = sorted(path.name for place in map(Path, sys.path) for path in place.glob("*.dist-info"))
    files = {path.relative_to(project.root).as_posix(): path for path in _files(project.root)}
    parts = (part for name in sorted(files) for part in (name, files[name].read_bytes()))
    return digest(platform.python_version(), repr(tools), repr(origin(project)), *parts)


def _files(root: Path) -> Iterator[Path]:
    """The files below a folder: without those that tools keep there for themselves, and without environments."""
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders[:] = [
            name for name in folders if name not in _ELSEWHERE and name[0] != "." and not name.endswith(".egg-info")
            and not (place / name / "pyvenv.cfg").exists()
        ]  # fmt: skip
        yield from (place / name for name in names if (place / name).is_file())
