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


def pins(checkout):
    done = subprocess.run(["make", "pins", "PYTHON=true"], cwd=checkout, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_pins_that_hold_are_kept_and_what_changed_is_told(checkout):
    status, told, _ = pins(checkout)
    assert status == 0 and "< numpy==1.0\n> numpy==2.0\n" in told
    assert (checkout / "requirements.txt").read_text() == NEW and (checkout / "done").read_text() == "built\n"
    assert (checkout / "wanted").read_text() == "numpy\ntorch==2.13.0\n"


def test_pins_that_do_not_hold_are_taken_back(checkout):
    (checkout / "breaks").touch()
    status, _, told = pins(checkout)
    assert status != 0 and "error: the newer pins fail, so requirements.txt is as before" in told
    assert (checkout / "requirements.txt").read_text() == OLD


def test_what_can_not_be_compiled_changes_nothing(checkout):
    (checkout / "conflict").touch()
    assert pins(checkout)[0] != 0
    assert (checkout / "requirements.txt").read_text() == OLD and not (checkout / "done").exists()


def test_without_anything_newer_it_says_so(checkout):
    (checkout / "newest").write_text(OLD)
    assert "every pin is already the newest version that fits" in pins(checkout)[1]
