import subprocess
import sys

import pytest

IMPORT = """
import sys, types
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.__version__ = "{}"
import zero_or_nan
"""


@pytest.mark.parametrize(("version", "is_refused"), [("2.5.1+cu124", True), ("1.13.0", True), ("2.10.0a0+git1", False)])
def test_an_older_pytorch_is_refused_and_named(version, is_refused):
    done = subprocess.run([sys.executable, "-c", IMPORT.format(version)], capture_output=True, text=True)
    message = f"ImportError: zero_or_nan needs PyTorch 2.6 or newer, and this is {version}: update PyTorch"
    assert (done.stderr.splitlines()[-1] == message) is is_refused
