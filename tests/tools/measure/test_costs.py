"""The steps that fail are measured to their end, in a process of their own."""

import subprocess
import sys

import pytest
from scratch import ROOT

PROGRAM = """
from tools.measure.costs import failing
for name in ("one logarithm of 0", "4-layer MLP, width 64, batch 32, one row of NaN"):
    seconds = failing(name)
    assert set(seconds) == {"plain", "ignoring", "explain"} and all(0 < took < 60 for took in seconds.values()), seconds
print("measured")
"""


@pytest.mark.slow
def test_the_garbage_collector_may_free_hundreds_of_reports_with_their_model():
    """Python 3.11 crashed here when reports held modules in a WeakSet."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "measured\n"), ran.stderr
