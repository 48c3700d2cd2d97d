"""Runs a script a second time, in a new process, with a remedy pasted in. What this run prints is discarded."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import Connection
from types import CodeType, ModuleType
from typing import NamedTuple

import torch

from . import explain
from .program.pasted import Pasted
from .report.report import Report


class Script(NamedTuple):
    """A script or a module, and how it was started.

    Attributes:
        name: the path of the script, or the name of the module.
        is_module: whether it is a module.
        arguments: its arguments.
        path: where Python looks for modules first.
        file: the absolute path of a script, which may change the folder; empty for a module.
        seed: the seed of PyTorch's random numbers.
    """

    name: str
    is_module: bool
    arguments: list[str]
    path: str
    file: str
    seed: int

    def run(self, code: CodeType | None = None) -> None:
        """Run it as `python` does, perhaps with other code than its file has."""
        if code is not None:
            main = sys.modules["__main__"] = ModuleType("__main__")
            main.__dict__["__file__"] = self.file
            exec(code, main.__dict__)
        elif self.is_module:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self.file, run_name="__main__")


def run_again(script: Script, report: Report) -> None:
    """Run a script with the remedy of its first origin pasted in, and write the outcome into the report."""
    origin = report.origins[0] if report.origins else None
    if origin is None or origin.replaces is None:
        return
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    place = origin.filename, origin.replaces, origin.remedy, origin.until
    process = context.Process(target=_second_run, args=(send, script, place))
    process.start()
    send.close()
    try:
        origin.again = f"the script, run again with this line, {receive.recv()}"
    except EOFError:
        origin.again = "the script, run again with this line, ended without an answer"
    finally:
        process.kill()
        process.join()


def _second_run(send: Connection, script: Script, place: tuple[str, int, str, int | None]) -> None:
    """Send what came of a run with a remedy, as the end of a sentence."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.argv = [script.name, *script.arguments]
    sys.path.insert(0, script.path)
    torch.manual_seed(script.seed)
    line = Pasted(*place)
    raised = ""
    with line.imported(), explain() as report:
        try:
            script.run(line.compiled() if script.file == line.filename else None)
        except SystemExit:
            pass
        except Exception as error:
            raised = f"raises {type(error).__name__}: {error}"
    if raised or report.ok:
        send.send(raised or ("has a finite loss and finite gradients" if report.passes else "runs no backward pass"))
    else:
        first = report.origins[0]
        what = first.operands or first.operator
        send.send(f"has another origin: {first.kind}: {what}, in line {line.line_before(first.line)}")
