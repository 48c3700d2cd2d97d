"""New pins are kept only if all holds with them: the real Makefile, with made-up programs in its environment."""

import shutil
import subprocess
import sys

import pytest
from scratch import ROOT

OLD, NEW = "numpy==1.0\n    # via -r -\ntorch==2.13.0\n", "numpy==2.0\n    # via -r -\ntorch==2.13.0\n"
PYTHON = f"""#!/bin/sh
case "$*" in
  *dependency-groups*) exec {sys.executable} "$@" ;;
  *"tools book") echo built >> done; test ! -e breaks ;;
esac
"""
COMPILE = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
cat > wanted
test ! -e conflict && sed 's/torch==2.13.0/&+cpu/' newest > "$2"
"""


@pytest.fixture
def checkout(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\nbook = ["numpy"]\npinned = ["torch==2.13.0"]\n')
    (tmp_path / "requirements.txt").write_text(OLD)
    (tmp_path / "newest").write_text(NEW)
    programs = {"python": PYTHON, "pip-compile": COMPILE, **dict.fromkeys(("pip", "ruff", "mypy"), "#!/bin/sh\n")}
    for name, program in programs.items():
        path = tmp_path / ".venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program)
        path.chmod(0o755)
    (tmp_path / ".venv" / "bin" / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("case", "newest", "said", "kept"),
    [
        ("", NEW, "< numpy==1.0\n> numpy==2.0\n", NEW),
        ("", OLD, "every pin is already the newest version that fits", OLD),
        ("breaks", NEW, "error: the newer pins fail, so requirements.txt is as before", OLD),
        ("conflict", NEW, "", OLD),
    ],
)
def test_pins_that_hold_are_kept_and_others_are_taken_back(checkout, case, newest, said, kept):
    (checkout / "newest").write_text(newest)
    if case:
        (checkout / case).touch()
    done = subprocess.run(["make", "pins", "PYTHON=true"], cwd=checkout, capture_output=True, text=True)
    assert bool(done.returncode) is bool(case) and said in done.stdout + done.stderr
    assert (checkout / "requirements.txt").read_text() == kept
    assert (checkout / "wanted").read_text() == "numpy\ntorch==2.13.0\n"
    assert (checkout / "done").exists() is (case != "conflict")
