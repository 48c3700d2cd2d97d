"""Finds the private names of PyTorch that the library uses, but that the installed PyTorch lacks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..private import TABLE


def rows() -> Iterator[tuple[list[str], str, str]]:
    """For each name of the table: the name with its alternatives, its purpose, and what happens without it."""
    for line in TABLE.splitlines():
        names, purpose, without = line.split(" | ")
        owner = names.partition(",")[0].partition(" or ")[0].rpartition(".")[0]
        for name in names.split(", "):
            yield [f"{owner}.{each.removeprefix(f'{owner}.')}" for each in name.split(" or ")], purpose, without


def lacking() -> list[str]:
    """A sentence for each name that this PyTorch lacks."""
    return [
        f"PyTorch {torch.__version__} lacks {' and '.join(names)} ({purpose}): {without}"
        for names, purpose, without in rows()
        if not any(map(exists, names))
    ]


def exists(name: str) -> bool:
    """True if PyTorch has a name.

    No module is imported for this, because the library treats what is imported as used. In a module that is not
    imported, and in a class whose instances have the name, the source is searched for the name.
    """
    parts = name.split(".")
    owner: Any = torch
    for at in range(1, len(parts)):
        here = sys.modules.get(".".join(parts[: at + 1]))
        try:
            owner = inspect.getattr_static(owner, parts[at]) if here is None else here
        except AttributeError:
            return re.search(rf"\b{parts[-1]}\b", _source(owner, parts[1:])) is not None
    return True


def _source(owner: Any, parts: list[str]) -> str:
    """The source of a class, or the path and the source of the innermost module on the way to a name."""
    for end in range(len(parts), 0, -1) if isinstance(owner, ModuleType) else ():
        path = Path(torch.__file__ or "").parent.joinpath(*parts[:end])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return f"{file}\n{file.read_text(encoding='utf-8')}"
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):  # it is written in C
        return ""
