"""Everything that the outputs of a page depend on, except the code of its chapter."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

from ..project import Project
from .session import STARTUP

# ipykernel and IPython shape the outputs; the others compute them.
_PACKAGES = ("torch", "numpy", "matplotlib", "ipykernel", "ipython")
_HIDING = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


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
