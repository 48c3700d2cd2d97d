"""`python -m zero_or_nan.explain script.py args…`: run a script, and report where a NaN appears, or could."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
from types import TracebackType

import torch

from . import explain, second_run
from .probe.script import NO_FUNCTION, FirstStep, Losses
from .report.report import NotFiniteError
from .second_run import Script, run_again


def main(arguments: list[str] | None = None) -> int:
    """Run a script inside `explain`, print the report, and return the exit status.

    Returns:
        1 if a NaN or infinity reached the loss or a gradient, or can, or the script failed; else its own status.

    Raises:
        KeyboardInterrupt: if the user stopped the script. The report is printed first.
    """
    parser = argparse.ArgumentParser(
        prog="python -m zero_or_nan.explain",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a script, and report where a NaN or infinity in its loss or gradients first appeared.",
        epilog="The exit status is 1 if a NaN or an infinity reached the loss or a gradient, or if the script failed.\n"
        "Otherwise it is the script's status.\n\nexample:\n  python -m zero_or_nan.explain --stop train.py --epochs 1",
    )
    parser.add_argument("--json", action="store_true", help="print the report, or the results of a search, as JSON")
    parser.add_argument("--stop", action="store_true", help="end the script after the first bad backward pass")
    parser.add_argument(
        "--probe", action="store_true", help="search the loss of the first step for a NaN, and end the script there"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="run the script once more, in a new process, with the first remedy in place of its line",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of the search in seconds (default: 10)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module: the script argument is its name")
    parser.add_argument("script", help="the file to run, or the name of a module")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the arguments of the script")
    options = parser.parse_args(arguments)
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"there is no file {options.script!r}")
    path = os.getcwd() if options.module else os.path.dirname(os.path.abspath(options.script))
    file = "" if options.module else os.path.abspath(options.script)
    script = Script(options.script, options.module, options.args, path, file, torch.initial_seed())
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, path)
    if options.probe:
        return _probed(script, options)
    status = 0
    interrupted = None
    watch = explain(on_nan="raise" if options.stop else "report")
    report = watch.__enter__()
    try:
        script.run()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except NotFiniteError:
        pass
    except KeyboardInterrupt as error:
        interrupted = error
    except Exception as error:
        error.__traceback__ = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)  # the script may have set its own
        status = 1
    finally:
        with contextlib.suppress(NotFiniteError):
            watch.__exit__(*sys.exc_info())
    if options.again and interrupted is None:
        run_again(script, report)
    _print(report.to_json() if options.json else str(report))
    if interrupted is not None:
        raise interrupted.with_traceback(_of_the_script(interrupted.__traceback__))
    return status or int(not report.ok)


def _print(text: str) -> None:
    """Print the report after what the script has printed. The script may have closed its output."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _probed(script: Script, options: argparse.Namespace) -> int:
    """Run a script until its first backward pass, search the loss, and print what was found."""
    losses = Losses(options.seconds)
    try:
        with losses:
            script.run()
    except (Exception, FirstStep):  # a bare `except` of the script may have caught the end, and then the script goes on
        if losses.reports is None:
            raise
    if losses.reports is None:
        print("the script ran no backward pass, so there is no loss to search", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({name: report.to_dict() for name, report in losses.reports.items()}, indent=2), flush=True)
    for name, report in losses.reports.items() if not options.json else ():
        print(f"{name}: {report}", flush=True)
    if not losses.reports:
        print(NO_FUNCTION, file=sys.stderr)
    return int(not losses.reports or not all(report.ok for report in losses.reports.values()))


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that led to the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        second_run.__file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
