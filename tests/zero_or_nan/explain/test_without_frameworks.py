"""The library needs PyTorch alone, and imports no self-check; a callback says which package it needs."""

import os
import subprocess
import sys
from pathlib import Path

import zero_or_nan

PROGRAM = """
import sys
import zero_or_nan.explain
frameworks = ["transformers", "pytorch_lightning", "lightning", "lightning.pytorch"]
print([name for name in sys.modules if name in frameworks or name.startswith("zero_or_nan.selfcheck")])
sys.modules.update(dict.fromkeys(frameworks[:3]))
for name in ("huggingface", "lightning"):
    try:
        __import__("zero_or_nan.explain." + name)
    except ImportError as error:
        print(error)
"""


def test_what_is_imported_and_missed():
    environment = {**os.environ, "PYTHONPATH": str(Path(zero_or_nan.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[]",
        "zero_or_nan.explain.huggingface needs transformers: pip install transformers",
        "zero_or_nan.explain.lightning needs Lightning: pip install lightning",
    ], done.stderr
