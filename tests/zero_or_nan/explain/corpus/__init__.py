"""Small programs, each with the place where its NaN or infinity is born."""

from . import (  # noqa: F401  (they register)
    atlas,
    cases,
    clean,
    held_out,
    mechanics,
    modules,
    reports_formulas,
    reports_training,
    threads,
    training,
)
from .program import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
