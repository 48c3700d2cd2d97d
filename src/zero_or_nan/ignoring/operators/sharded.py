"""Sharded tensors (`DTensor`): at the border to plain tensors, elements move from one process to another."""

from __future__ import annotations

from ..conditions import ALWAYS
from ..distributed import BORDERS
from ..registry import function

function(" ".join(BORDERS), moves=True, safe_if=ALWAYS)
