"""What the helpers know and don't compute: a TOML file for each list, which says what its fields mean."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def load(name: str) -> dict[str, Any]:
    """The content of a file of this folder."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
