"""`python -m tools COMMAND`: what the Makefile calls. Kept light: every warm kernel could otherwise import it all."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .project import Project

MEASURES = ("bench", "costs", "coverage", "honesty", "mended", "mutants", "setups", "site-report")
"""Commands that are one function of the project, in a module of the same name in `tools/measure/`."""
OF_SOME = ("coverage", "mutants")
"""Those that can be told what to measure."""


def main() -> int:
    """Run one command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools", description=__doc__)
    parser.add_argument("command", choices=("book", "check", "record", "notebooks", "serve", *MEASURES))
    parser.add_argument("names", nargs="*", help="for coverage and mutants: parts of the code, or for mutants files")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout (default: this folder)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one cell may take (default: 120)")
    parser.add_argument("--sample", type=int, help="for mutants: how many of each part (default: all)")
    options = parser.parse_args()
    if options.names and options.command not in OF_SOME:
        parser.error(f"{options.command} takes no names")
    if options.sample is not None and (options.command != "mutants" or options.sample < 1):
        parser.error("--sample is for mutants, and at least 1")
    from .project import Problem, Project

    try:
        return _run(options, Project(options.root))
    except Problem as problem:  # anything else is a bug, and keeps its traceback
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, project: Project) -> int:
    """Import what the command needs, and nothing else."""
    name = options.command.replace("-", "_")
    if options.command in MEASURES:
        extra = {} if options.sample is None else {"sample": options.sample}
        getattr(importlib.import_module(f".measure.{name}", __package__), name)(project, *options.names, **extra)
        return 0
    if options.command == "serve":
        from .serve import serve

        serve(project)
        return 0
    from .steps.build import Build

    return int(getattr(Build(project, options.timeout), name)())


if __name__ == "__main__":
    sys.exit(main())
