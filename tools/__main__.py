"""`python -m tools COMMAND`: what the Makefile calls. Kept light: every warm kernel could otherwise import it all."""

import argparse
import importlib
import sys
from pathlib import Path

STANDALONE = ("bench", "costs", "coverage", "honesty", "serve", "setups", "site-report")
"""Commands that are one function of the project, in a module of the same name."""


def main() -> int:
    """Run one command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools", description=__doc__)
    parser.add_argument("command", choices=("book", "check", "record", "notebooks", *STANDALONE))
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout (default: this folder)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one cell may take (default: 120)")
    options = parser.parse_args()
    try:
        from .project import Project

        project = Project(options.root)
        if options.command == "notebooks":
            from .pair import pair

            changed = pair(project)
            print(f"{len(changed)} of {len(project.chapters)} notebooks rewritten")
            return 0
        if options.command in STANDALONE:
            name = options.command.replace("-", "_")
            getattr(importlib.import_module(f".{name}", __package__), name)(project)
            return 0
        from .build import Build

        return int(getattr(Build(project, options.timeout), options.command)())
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
