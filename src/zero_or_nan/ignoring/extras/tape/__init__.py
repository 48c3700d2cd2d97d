"""A user's own derivative without a record: a tape of the operators that it calls, and a step that reads the tape."""

from . import step

__all__ = ["step"]
