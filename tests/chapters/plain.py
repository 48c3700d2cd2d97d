"""Runs the visible cells of pages as a reader would: in plain Python, with torch and the library, without the helpers.

Reads `{page: [parts, ...]}` from standard input: the parts of a session are lists of cells, and each part goes on where
the one before ended. Writes what each part printed, or the error that stopped it and all that follow.
"""

import contextlib
import io
import json
import sys
import traceback
import warnings

import numpy
import torch  # noqa: F401

# What a reader need not have. torch is imported before them: it copes without NumPy, and warns.
ABSENT = ("helpers", "numpy", "matplotlib", "IPython", "tools")


def run(cells: list[str], session: dict[str, object]) -> dict[str, str]:
    """What the cells print, one after another in a session; `error` is empty when all came to their end."""
    # transformers brings NumPy, and needs it.
    needs_numpy = any("import transformers" in cell for cell in cells)
    sys.modules["numpy"] = numpy if needs_numpy else None  # type: ignore[assignment]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        for number, cell in enumerate(cells, 1):
            try:
                exec(compile(cell, f"visible cell {number}", "exec"), session)
            except BaseException:
                return {"printed": printed.getvalue(), "error": f"{cell}\n\n{traceback.format_exc(limit=-1)}"}
    return {"printed": printed.getvalue(), "error": ""}


def run_all(parts: list[list[str]]) -> list[dict[str, str]]:
    """What each part printed, in one session."""
    session: dict[str, object] = {"__name__": "__main__"}
    done: list[dict[str, str]] = []
    for cells in parts:
        stopped = next((part["error"] for part in done if part["error"]), "")
        done.append({"printed": "", "error": stopped} if stopped else run(cells, session))
    return done


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(ABSENT))  # type: ignore[arg-type]
    pages = json.load(sys.stdin)
    told = {page: [part for parts in sessions for part in run_all(parts)] for page, sessions in pages.items()}
    json.dump(told, sys.stdout)
