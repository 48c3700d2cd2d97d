"""New pins are kept only when all holds with them; a made-up checkout has a gate of its own, run by the real make."""

import json
import os
import sys

import pytest
from scratch import ROOT

from tools.project import Problem, Project
from tools.versions import pins as module
from tools.versions.pins import changes, compiled, outdated, pins, portable, requirements_of

OLD, NEW = "numpy==1.0\n    # via torch\ntorch==2.13.0\n", "numpy==2.0\n    # via torch\ntorch==2.13.0\n"
MAKEFILE = """\
book:
\ttest ! -e _build && test ! -e notebooks && test ! -e .venv && test -z "$$PYTHONPATH" && touch _build
\tgrep -q numpy==2.0 requirements.txt
\ttest ! -e ../claim-fails-with-2.0 && test ! -e breaks
lint:
\ttest -e _build && test -x $(PYTHON)
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    for folder in ("_build", ".venv", "chapters", "notebooks"):
        (root / folder).mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        (root / name).write_text("{}")
    (root / "requirements.txt").write_text(OLD)
    (root / "Makefile").write_text(MAKEFILE)
    monkeypatch.setattr(module, "compiled", lambda copy: NEW)
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    return root


def test_pins_that_hold_are_kept_and_what_changed_is_told(checkout, capfd):
    pins(Project(checkout))
    assert (checkout / "requirements.txt").read_text() == NEW
    assert capfd.readouterr().out.endswith(
        "every check passed; these pins in requirements.txt changed:\n  numpy 1.0 -> 2.0\n"
    )


def test_pins_that_do_not_hold_leave_everything_as_it_was(checkout, tmp_path):
    (checkout / "breaks").touch()
    before = sorted(checkout.rglob("*"))
    with pytest.raises(Problem, match=r"(?s)make book lint. fails with the newer pins.*is unchanged.*numpy 1.0 -> 2.0"):
        pins(Project(checkout))
    assert (checkout / "requirements.txt").read_text() == OLD and sorted(checkout.rglob("*")) == before
    assert list((tmp_path / "temporary").iterdir()) == []


def test_without_anything_newer_nothing_is_run(checkout, monkeypatch, capfd):
    monkeypatch.setattr(module, "compiled", lambda copy: OLD)
    (checkout / "Makefile").unlink()
    pins(Project(checkout))
    assert capfd.readouterr().out == "nothing to do: every pin is already the newest version that fits\n"


def test_what_would_be_tried_can_be_told_alone(checkout, monkeypatch, capsys):
    said = {"minisearch": {"wanted": "7.2.0", "latest": "8.0.0"}}
    fake(checkout, monkeypatch, said)
    outdated(Project(checkout))
    assert capsys.readouterr().out == (
        "### Pins\n\n- numpy 1.0 -> 2.0\n\n### Packages of the site\n\n- minisearch 7.2.0 -> 8.0.0\n"
    )
    monkeypatch.setattr(module, "compiled", lambda copy: OLD)
    fake(checkout, monkeypatch, {})
    outdated(Project(checkout))
    assert "Every pin is the newest version that fits." in (text := capsys.readouterr().out) and "Every package" in text
    assert (checkout / "requirements.txt").read_text() == OLD


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"error": {"summary": "no network"}}, "npm outdated got no answer from its registry: no network"),
        ({"error": {"summary": ""}, "message": "refused"}, "npm outdated got no answer from its registry: refused"),
        ("half", "npm outdated gave no JSON"),
    ],
)
def test_an_npm_that_could_not_ask_is_not_taken_for_all_new(checkout, monkeypatch, said, why):
    fake(checkout, monkeypatch, said)
    with pytest.raises(Problem, match=why):
        outdated(Project(checkout))


def fake(checkout, monkeypatch, said):
    """Put an npm on the path that says this, and ends as npm does where it has news."""
    folder = checkout.parent / "bin"
    folder.mkdir(exist_ok=True)
    text = said if isinstance(said, str) else json.dumps(said)
    (folder / "npm").write_text(f"#!{sys.executable}\nprint({text!r}); exit(1)\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_can_not_be_compiled_is_told_in_the_words_of_pip_compile(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ntest = ["no requirement"]\n')
    with pytest.raises(Problem, match="(?s)pip-compile can't find the newest versions:.*no requirement"):
        compiled(tmp_path)
    assert requirements_of(ROOT / "pyproject.toml")[0] == "numpy"


def test_changes_are_of_versions_alone():
    assert changes(OLD, OLD.replace("# via torch", "# via all")) == []
    assert changes("a==1\n", "a==1 ; python_version < '3'\nb==2\n") == ["b new -> 2"]
    assert portable("torchmetrics==1.0+cpu\ntorch==2.13.0+cu130\n") == "torchmetrics==1.0+cpu\ntorch==2.13.0\n"
