"""`python -m zero_or_nan.explain script.py args…`: run a script, and tell where its NaN was born."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback

from . import explain
from .report import NotFiniteError


def main(arguments: list[str] | None = None) -> int:
    """Run a script inside of `explain`, print the report, and give the exit status.

    Returns:
        1 when a NaN or an infinity reached the loss or a gradient, or the script failed; else the script's own.
    """
    parser = argparse.ArgumentParser(
        prog="python -m zero_or_nan.explain",
        description="Run a script, and say where a NaN or an infinity was born that reached the loss or a gradient.",
        epilog="The exit status is 1 when there was one.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON, after the script's output")
    parser.add_argument("--stop", action="store_true", help="end the script with the first bad backward pass")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    parser.add_argument("script", help="what to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    options = parser.parse_args(arguments)
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"there is no file {options.script!r}")
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, os.getcwd() if options.module else os.path.dirname(os.path.abspath(options.script)))
    status = 0
    watch = explain(on_nan="raise" if options.stop else "report")
    report = watch.__enter__()
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except NotFiniteError:
        pass
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(NotFiniteError):
            watch.__exit__(*sys.exc_info())
    sys.stdout.flush()
    print(report.to_json() if options.json else report)
    return status or int(not report.ok)


if __name__ == "__main__":
    sys.exit(main())
