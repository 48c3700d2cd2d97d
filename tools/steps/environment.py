"""Everything that a cached output depends on, except the code of its chapter.

jupyter-cache identifies a notebook by its code cells alone. After a change to a helper or to PyTorch, it would still
return the old outputs. Therefore every environment has its own cache. The cache is named by a digest of the source of
the library and the helpers, and of the versions that can change a result.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

from ..project import Project
from .session import STARTUP

# ipykernel and IPython shape the outputs; the others compute them.
_PACKAGES = ("torch", "numpy", "matplotlib", "ipykernel", "ipython")
_HIDING = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
_KEPT = 3
"""How many caches are kept: those that were used last."""


def fingerprint(project: Project) -> str:
    """A digest of everything that pages show, except their own code.

    It covers the modules that pages import from `src/`, and the results of other versions. It also covers the settings
    and the device with which a kernel starts, the processor, and the versions that can change a result.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for package in _PACKAGES:
        digest.update(f"{package}=={version(package)}\n".encode())
    digest.update(f"{STARTUP}{os.environ.get('ZERO_OR_NAN_DEVICE', '')}{processor()}".encode())
    for path in [*sorted(project.source.rglob("*")), project.claims]:
        if path.is_file() and not any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts):
            digest.update(path.relative_to(project.root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def processor() -> str:
    """What decides in which order PyTorch adds up: the processor, and the variables that hide a part of it."""
    cpus = Path("/proc/cpuinfo")
    flags = [line for line in cpus.read_text().split("\n") if line.startswith("flags")][:1] if cpus.is_file() else []
    return "".join([*flags, platform.processor(), *(os.environ.get(name, "") for name in _HIDING)])


def cache_folder(project: Project) -> Path:
    """The folder of this environment's cache."""
    return project.build / "cache" / fingerprint(project)


def forget_old_caches(project: Project) -> None:
    """Delete all caches except the most recently used, so that switching between environments stays fast."""
    folders = [path for path in (project.build / "cache").glob("*") if path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT:]:
        shutil.rmtree(folder)
