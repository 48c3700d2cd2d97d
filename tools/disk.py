"""The disk: how much of it a build needs, and how to recognize that it is full."""

from __future__ import annotations

import errno
import os
import shutil
import traceback
from pathlib import Path

from .project import Problem

ROOM = 128 << 20
"""Bytes on the disk that a build needs at most: a third more than a build from nothing took when it was measured."""
_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
# Words, because most of these errors come wrapped: by the cache, by SQLite, or in the output of the renderer.
_WORDS = (*map(os.strerror, _ERRORS), "database or disk is full", "disk I/O error")


def check_room(folder: Path) -> None:
    """Make the folder. Raise a `Problem` if it is not writable, or if its disk has not enough room for a build."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < ROOM or not os.access(folder, os.W_OK):
        raise Problem(f"{folder} must be writable and have {ROOM >> 20} MiB free; it has {free >> 20} MiB free")


def complaint(error: Exception, folder: Path) -> str | None:
    """What to do if the error says that the disk is full or not writable; None for every other error."""
    said = "".join(traceback.format_exception(error)).splitlines()
    lines = [line.strip() for line in said if any(words in line for words in _WORDS)]
    if not lines:
        return None
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    return (
        f"{lines[-1]}. A build needs {ROOM >> 20} MiB in {folder}, which has {free} MiB free. Make room on the disk, "
        "allow writing there, or lift the limit that `ulimit -f` shows. Then run the same command again, and it "
        "continues from here."
    )
