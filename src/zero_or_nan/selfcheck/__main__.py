"""`python -m zero_or_nan.selfcheck`: see the package's docstring."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import torch

from .checking import Row, ask_all
from .report import CASES_HEAD, OPERATORS_HEAD, Comparison


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, print the result, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m zero_or_nan.selfcheck",
        description="Run the book's cases and a sample of PyTorch's operators, with plain PyTorch and with ignoring, "
        "and compare the results with the recorded ones. The exit status is 1 after a difference.",
    )
    parser.add_argument("--device", help="where to run: cpu, cuda, cuda:1, mps … (default: the accelerator, or cpu)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, to attach to a bug report")
    options = parser.parse_args(arguments)
    name = options.device or accelerator() or "cpu"
    try:
        device = torch.device(name)
        torch.ones(1, device=device).add(1).item()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        parser.error(f"no device {name!r} here ({reason}): use --device {accelerator() or 'cpu'}")
    try:
        report = Comparison(device)
        if options.json:
            with _stdout_to_stderr():  # libraries for linear algebra complain there of NaN
                report.rows, report.left_out = ask_all(device, lambda row: None)
            print(report.json())
        else:
            _in_lines(report)
        return 1 if report.differences else 0
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def accelerator() -> str | None:
    """The type of this machine's accelerator; None if there is none."""
    for kind in ("cuda", "mps", "xpu"):
        if getattr(torch, kind).is_available():
            return kind
    return None


def _in_lines(report: Comparison) -> None:
    """Each row as soon as it is known."""
    print(report.head(), CASES_HEAD, sep="\n\n", flush=True)
    heads = [OPERATORS_HEAD]

    def tell(row: Row) -> None:
        if row.tally and heads:
            print(f"\n{heads.pop()}")
        print(report.line(row), flush=True)

    report.rows, report.left_out = ask_all(report.device, tell)
    print(f"\n{report.summary()}")


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What a library in C prints goes to the standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
