"""A plugin of pytest that writes down what became of each test, and puts `ignoring` in place of PyTorch's backward.

It runs in the environments of `peers`, beside `zero_or_nan` and without the rest of the checkout. PEERS_OUT in
the environment names the file. PEERS_KIND is `ignoring`, or PyTorch stays unchanged.
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

import pytest
import torch

TESTS: dict[str, dict[str, Any]] = {}
_WORST = ("passed", "skipped", "failed")


def replace(name: str, ours: Callable[..., Any]) -> None:
    """Put our function in place of PyTorch's, which `Tensor.backward` calls too. The library itself gets PyTorch's."""
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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test is what the worst of its parts is; only a call can pass."""
    test = _test(report.nodeid)
    if (report.outcome != "passed" or report.when == "call") and (
        not test["outcome"] or _WORST.index(report.outcome) > _WORST.index(test["outcome"])
    ):
        test["outcome"] = report.outcome
    if report.failed and not test["said"]:
        crash = getattr(report.longrepr, "reprcrash", None)
        test["said"] = " ".join(str(crash.message if crash else report.longrepr).split())[:300]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that can't be read is a failure."""
    if report.failed:
        _test(report.nodeid).update(outcome="failed", said=str(report.longrepr).strip().splitlines()[-1][:300])


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """Keep the warnings of `ignoring`, without its advice."""
    text = str(warning_message.message)
    if text.startswith("ignoring"):
        _test(nodeid)["warnings"].append(text.partition(": from there on")[0])


def pytest_sessionfinish() -> None:
    """Write down what became of the tests."""
    versions = {"torch": torch.__version__.partition("+")[0], "python": platform.python_version()}
    tests = {name: test for name, test in TESTS.items() if test["outcome"]}
    Path(os.environ["PEERS_OUT"]).write_text(json.dumps({"versions": versions, "tests": tests}), encoding="utf-8")
