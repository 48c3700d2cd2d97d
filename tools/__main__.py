"""`python -m tools COMMAND`, which the Makefile calls.

It imports little, because every warm kernel may import it too.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .project import Project

STEPS = ("book", "check", "record", "notebooks")
"""Commands that are methods of `steps.build.Build`."""
MEASURES = """attention compiled costs explained first-look fixed honesty masked on-gpu penguins
    probe remedies setups""".split()
VERSIONS = ("jax", "library-tests", "matrix")
COMMANDS = {
    "picture": ".picture",
    "fixed-sample": ".measure.fixed",
    **{name: f".measure.{name}".replace("-", "_") for name in MEASURES},
    **{name: f".versions.{name}".replace("-", "_") for name in VERSIONS},
}
"""The other commands. Each is a function that takes the project; this table gives its module."""
OF_SOME = {
    "check": "chapters",
    "matrix": "versions of PyTorch",
    **dict.fromkeys("costs first-look fixed honesty probe setups".split(), "what to measure"),
    "compiled": "backends of torch.compile, and layers or losses",
}
"""Commands that take names. Without names, such a command works on everything. An unknown name is an error."""


def main() -> int:
    """Run one command, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools", description="Run one step of the build, or one measurement."
    )
    parser.add_argument("command", choices=(*STEPS, *COMMANDS))
    about = "; ".join(f"{command}: {names}" for command, names in OF_SOME.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{about} (default: all)")
    parser.add_argument(
        "--timeout", type=int, default=120, help="the most seconds that one cell may run (default: 120)"
    )
    options = parser.parse_args()
    if options.names and options.command not in OF_SOME:
        parser.error(f"{options.command} takes no names; only these commands do: {', '.join(OF_SOME)}")
    from .project import Problem, Project

    try:
        return _run(options, Project(Path.cwd()))
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace, project: Project) -> int:
    """Import only the modules that the command needs, and run it."""
    name = options.command.replace("-", "_")
    if options.command in STEPS:
        from .steps.build import Build

        return int(getattr(Build(project, options.timeout), name)(*options.names))
    module = importlib.import_module(COMMANDS[options.command], __package__)
    return int(getattr(module, name)(project, *options.names) or 0)


def _interrupt(*_: object) -> None:
    """End the command, and ignore Ctrl-C from now on, because a second one would end the clean-up with a traceback.

    Python drops an exception that is raised in a destructor or in a callback of a weak reference. If that happens to
    this one, the command ends by itself after ten seconds, without its clean-up.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = threading.Timer(10, _end)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _end() -> None:
    """Say how to go on, and leave out Python's own work at its end.

    Threads would wait for their kernels, which are dead, and nbclient would print a traceback for each of them.
    """
    print("\ninterrupted; run the same command again, and it continues from here", file=sys.stderr)
    sys.stdout.flush()
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupt)
    try:
        status = main()
    except KeyboardInterrupt:
        _end()
    sys.exit(status)
