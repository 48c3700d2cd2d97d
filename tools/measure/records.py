"""The one way to write, read and show what was measured: every record is a file in `results/measured`.

A file in this folder measures, writes the record of the same name, and draws it on a page with its function `shown`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from helpers import show
from helpers.recorded import spans, unfolded
from helpers.releases import number

from ..project import Problem, Project, read_record, write_record
from ..steps.record import folded

RELEASE = torch.__version__.partition("+")[0]


def made_with() -> dict[str, str]:
    """What a measurement ran on, for records of times and errors."""
    return {"torch": RELEASE, "python": platform.python_version(), "device": "cpu"}


def gpu() -> str:
    """The name of this machine's GPU.

    Raises:
        Problem: if there is no GPU that PyTorch can use through CUDA.
    """
    if not torch.cuda.is_available():
        raise Problem("this measurement needs a GPU and a PyTorch that was built for CUDA; this machine lacks one")
    return torch.cuda.get_device_name()


def place(project: Project, name: str) -> Path:
    """The file of a record."""
    return project.results / "measured" / f"{name}.json"


def read(project: Project, name: str) -> dict[str, Any]:
    """A record; empty if nothing was recorded yet."""
    path = place(project, name)
    return dict(read_record(path)) if path.is_file() else {}


def keep(project: Project, name: str, content: dict[str, Any]) -> Path:
    """Write a record, print its path, and return it."""
    path = place(project, name)
    write_record(path, content)
    print(f"written: {path.relative_to(project.root)}", flush=True)
    return path


def keep_swept(project: Project, name: str, content: dict[str, Any]) -> None:
    """Write a record of PyTorch's operators. Other releases than the pinned 2.13 have their own files."""
    keep(project, name if RELEASE.startswith("2.13") else f"{name}-torch-{RELEASE}", content)


def keep_release(project: Project, name: str, release: str, lines: Sequence[dict[str, Any]], *about: str) -> Path:
    """Put the lines of a release into a record, next to the lines of other releases, and return the file.

    `about` has the keys that identify a line. Releases with equal lines share them.
    """
    releases = {**by_release(read(project, name)), release: lines}
    releases = {each: releases[each] for each in sorted(releases, key=number)}
    return keep(project, name, {"releases": list(releases), "rows": folded(releases, about, first=release)})


def by_release(content: dict[str, Any]) -> dict[str, Sequence[dict[str, Any]]]:
    """The lines in such a record, by release."""
    return {**unfolded(content["releases"], content["rows"])} if content else {}


def prose(*parts: str, kind: str = "") -> str:
    """Tables and paragraphs as a part of a page."""
    return show.page(show.prose(*parts, kind=kind))


def per_release(outcomes: Mapping[str, str]) -> str:
    """An outcome as HTML. If releases differ, each outcome is followed by the releases that have it."""
    groups = [(text, [release for release, _ in group]) for text, group in groupby(outcomes.items(), lambda o: o[1])]
    if len(groups) == 1:
        return groups[0][0]
    return "<br>".join(f'{text} <span class="zn-note">({spans(releases)})</span>' for text, releases in groups)
