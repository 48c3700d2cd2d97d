"""Small programs, each with the place where its NaN or infinity is born."""

from . import atlas, beside, cases, clean, held_out, mechanics, modules, textbook, threads, training  # noqa: F401  (they register)
from .program import PROGRAMS, Expected, Program

__all__ = ["PROGRAMS", "Expected", "Program"]
