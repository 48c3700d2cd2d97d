"""Runs the visible cells of pages as a reader would: in plain Python, with torch and the library, without the helpers.

Reads `{page: [cells, ...]}` from standard input, a list for each time that the page is begun anew; writes what each run
printed, or the error that stopped it.
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


def run(cells: list[str]) -> dict[str, str]:
    """What the cells print, one after another in one session; `error` is empty when all came to their end."""
    session: dict[str, object] = {"__name__": "__main__"}
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


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(ABSENT))  # type: ignore[arg-type]
    pages = json.load(sys.stdin)
    json.dump({page: [run(cells) for cells in sessions] for page, sessions in pages.items()}, sys.stdout)
