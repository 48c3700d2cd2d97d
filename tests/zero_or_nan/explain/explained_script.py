"""A training script under `python -m zero_or_nan.explain`."""

import os
import subprocess
import sys
from pathlib import Path

import zero_or_nan

HOME = str(Path(zero_or_nan.__file__).parents[1])


def explained(folder, source):
    """Run a script in a folder; the first three lines of the report on an undefined number, and the process."""
    (folder / "train.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "zero_or_nan.explain", "train.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": HOME}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout.partition("undefined: ")[2].splitlines()[:3], done
