"""“Could not be asked” is not “no finding”, and an exception has a reason and a day on which it ends."""

import json
import os
import sys
from datetime import date

import pytest

from tools.project import Problem, Project
from tools.versions.audit import UNASKED, audit

TODAY = date(2026, 11, 21)
PYTHON = {"name": "jinja2", "version": "3.1.0", "vulns": []}
FLAW = {"id": "PYSEC-1", "aliases": ["CVE-1", "GHSA-1"], "fix_versions": ["3.1.6"], "description": "…"}
UNREACHED = {"name": "rich", "skip_reason": "Dependency not found and could not be audited: rich (15.0.0)"}
VIA = {"url": "https://github.com/advisories/GHSA-2", "range": "<1.2", "title": "…"}
NPM = {"vulnerabilities": {"ws": {"via": [VIA, "other"]}, "other": {"via": ["ws"]}}}
NONE = {"vulnerabilities": {}, "metadata": {}}


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Audit a made-up checkout with what pip-audit and npm say; return the exit status and what is printed."""
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def asked(python, npm=NONE, exceptions=""):
        said = python if isinstance(python, str) else json.dumps({"dependencies": python, "fixes": []})
        (tmp_path / "pip_audit.py").write_text(f"import sys\nprint({said!r}); sys.exit('no network')\n")
        (tmp_path / "npm").write_text(f"#!{sys.executable}\nprint({json.dumps(npm)!r}); exit(1)\n")
        (tmp_path / "npm").chmod(0o755)
        (tmp_path / "pyproject.toml").write_text(f"[tool.zero-or-nan]\naudit-exceptions = [{exceptions}]\n")
        return audit(Project(tmp_path), TODAY), capsys.readouterr().out

    return asked


def exception(advisory, until="2026-12-31", reason="not used here"):
    return f'{{advisory = "{advisory}", reason = "{reason}", until = {until}}},'


def test_without_a_finding_it_says_so(ask):
    assert ask([PYTHON]) == (0, "no pinned package has a known vulnerability\n")


def test_a_finding_is_told_with_what_ends_it(ask):
    status, said = ask([{**PYTHON, "vulns": [FLAW]}], NPM)
    assert status == 1
    assert said.splitlines() == [
        "found: jinja2 3.1.0: PYSEC-1, CVE-1, GHSA-1; fixed in: 3.1.6",
        "found: ws <1.2: GHSA-2; fixed in: see https://github.com/advisories/GHSA-2",
    ]


def test_a_package_that_was_not_answered_for_is_not_taken_for_safe(ask):
    status, said = ask([PYTHON, UNREACHED, UNREACHED])
    assert status == UNASKED
    assert said == f"could not be checked: {UNREACHED['skip_reason']}; this holds for 2 of 3 packages\n"


@pytest.mark.parametrize("python", ["", "half", "{}", "[]"])
def test_a_service_that_gives_no_result_is_not_taken_for_safe(ask, python):
    assert ask(python) == (UNASKED, "could not be checked: pip-audit gave no result: no network\n")


@pytest.mark.parametrize(
    ("npm", "why"),
    [
        ({"error": {"summary": ""}, "message": "405"}, "npm audit got no answer from its registry: 405"),
        ({}, "npm audit gave no result"),
    ],
)
def test_nor_is_a_registry_that_does_not_answer(ask, npm, why):
    assert ask([PYTHON], npm) == (UNASKED, f"could not be checked: {why}\n")
    assert ask([{**PYTHON, "vulns": [FLAW]}], npm)[0] == 1


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-1", "GHSA-1"])
def test_an_exception_by_any_name_counts_until_its_day(ask, name):
    found = [{**PYTHON, "vulns": [FLAW]}]
    status, said = ask(found, exceptions=exception(name, "2026-11-21"))
    assert status == 0 and said.startswith("excepted: jinja2")
    status, said = ask(found, exceptions=exception(name, "2026-11-20"))
    assert status == 1 and said.startswith("found: jinja2")
    assert f"the exception for {name} ended on 2026-11-20; decide again whether it is needed (not used here)\n" in said
    assert ask(found, NPM, exceptions=exception(name))[0] == 1


def test_an_exception_that_nothing_falls_under_can_go(ask):
    assert "the exception for CVE-9 is not needed" in ask([PYTHON], exceptions=exception("CVE-9"))[1]
    # Who could not ask, can't say that.
    assert "is not needed" not in ask([UNREACHED], exceptions=exception("CVE-9"))[1]


@pytest.mark.parametrize(
    "written",
    [
        '{advisory = "CVE-1", until = 2026-12-31}',
        '{advisory = "CVE-1", reason = "r"}',
        exception("CVE-1", reason=""),
        exception("CVE-1", until='"2026-12-31"'),
        exception("CVE-1", until="2026-12-31T10:00:00"),
        exception("CVE-1", until="2027-03-01"),
    ],
)
def test_an_exception_without_reason_or_day_is_refused(ask, written):
    with pytest.raises(Problem, match=r"pyproject.toml: write an exception as \{advisory ="):
        ask([PYTHON], exceptions=written)
