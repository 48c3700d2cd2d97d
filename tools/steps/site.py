"""Whether the site is up to date with its sources, and the digest by which two sites can be compared."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from ..project import Project
from .git import origin
from .made import Made, digest

COVERED = "all files of _build/html but .buildinfo"
"""What the site's digest covers. Sphinx writes its settings to `.buildinfo`, and no page shows them."""

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
        """Whether a build from the present sources would give the same site."""
        return self._made.is_current(self._name, self._source, self.digest())

    def remember(self) -> None:
        """Record that the site was just built from these sources."""
        self._made.remember(self._name, self._source, self.digest())
        self._made.save()

    def digest(self) -> str:
        """SHA-256 over what `sha256sum` prints for all files that are `COVERED`, sorted by the bytes of their paths."""
        site = self._project.site
        files = {f"./{path.relative_to(site).as_posix()}": path for path in site.rglob("*") if path.is_file()}
        files.pop("./.buildinfo", None)
        lines = (f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def _source(project: Project) -> str:
    """A digest of every file that a page could show, of the commit, and of the installed packages."""
    tools = sorted(path.name for place in map(Path, sys.path) for path in place.glob("*.dist-info"))
    files = {path.relative_to(project.root).as_posix(): path for path in _files(project.root)}
    parts = (part for name in sorted(files) for part in (name, files[name].read_bytes()))
    return digest(platform.python_version(), repr(tools), repr(origin(project)), *parts)


def _files(root: Path) -> Iterator[Path]:
    """The files below a folder, without environments and the folders in which tools keep their own files."""
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders[:] = [
            name for name in folders if name not in _ELSEWHERE and name[0] != "." and not name.endswith(".egg-info")
            and not (place / name / "pyvenv.cfg").exists()
        ]  # fmt: skip
        yield from (place / name for name in names if (place / name).is_file())
