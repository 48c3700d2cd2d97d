"""A pytest plugin that records the outcome of each test, and replaces PyTorch's backward by `ignoring`.

It runs in the environments of `peers`, together with `zero_or_nan` but without the rest of the checkout. The
environment variable PEERS_OUT names the file of outcomes. PyTorch is replaced only if PEERS_KIND is `ignoring`.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TESTS: dict[str, dict[str, Any]] = {}


def replace(name: str, ours: Callable[..., Any]) -> None:
    """Replace PyTorch's function by ours. `Tensor.backward` then calls ours too. The library itself gets PyTorch's."""
    theirs = getattr(torch.autograd, name)

    @functools.wraps(theirs)
    def called(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("zero_or_nan."):
            return theirs(*args, **kwargs)
        _test(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])["calls"] += 1
        return ours(*args, **kwargs)

    setattr(torch.autograd, name, called)


def _test(name: str) -> dict[str, Any]:
    return TESTS.setdefault(name, {"outcome": "", "said": "", "warnings": [], "calls": 0})


def pytest_configure() -> None:
    """Replace the functions before any test is imported."""
    if os.environ["PEERS_KIND"] == "ignoring":
        from zero_or_nan import ignoring

        replace("backward", ignoring.backward)
        replace("grad", ignoring.grad)


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """Keep the warnings of `ignoring`, without their advice."""
    text = str(warning_message.message)
    if text.startswith("ignoring"):
        _test(nodeid)["warnings"].append(text.partition(": from there on")[0])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the worst outcome of each test, and of each file that can't be read, to the file."""
    for kind in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else str(report.longrepr or "").strip().rpartition("\n")[2]
            said = " ".join(said.split())[:300] if report.failed else ""
            _test(report.nodeid).update(outcome="failed" if report.failed else kind, said=said)
    versions = {"torch": torch.__version__.partition("+")[0], "python": platform.python_version()}
    tests = {name: test for name, test in TESTS.items() if test["outcome"]}
    Path(os.environ["PEERS_OUT"]).write_text(json.dumps({"versions": versions, "tests": tests}), encoding="utf-8")
