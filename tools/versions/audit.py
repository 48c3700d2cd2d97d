"""Checks whether a pinned package has a known vulnerability. SECURITY.md says when this runs, and what follows.

pip-audit and npm find the advisories. This file adds what neither has: an exception needs a reason and a last day, and
a service that did not answer for a package gives another exit status than a finding.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from ..measure.browser import MODULES
from ..project import Problem, Project

UNASKED = 2
"""The exit status if nothing was found but some packages could not be checked, which differs from no finding."""

LONGEST = timedelta(days=92)
"""How far in the future an exception may end."""


@dataclass(frozen=True)
class Finding:
    """An advisory that affects a pinned package: its names in all databases, and the versions that fix it."""

    package: str
    names: tuple[str, ...]
    fixed: str

    def __str__(self) -> str:
        return f"{self.package}: {', '.join(self.names)}; fixed in: {self.fixed or 'no version yet'}"


@dataclass(frozen=True)
class Excepted:
    """An advisory that does not affect this project, the reason, and the day on which the decision must be repeated."""

    advisory: str
    reason: str
    until: date


def audit(project: Project, today: date | None = None) -> int:
    """Check every package of `requirements.txt` and of the site, print the findings, and return the exit status.

    Returns:
        0 if nothing is found, 1 if something is, `UNASKED` if a service could not answer for all packages.

    Raises:
        Problem: if an exception in `pyproject.toml` lacks its reason or its day, or if the day is too far in the
            future.
    """
    today = today or date.today()
    exceptions = excepted(project, today)
    found: list[Finding] = []
    unasked: list[str] = []
    asks: tuple[Callable[[Project], tuple[list[Finding], list[str]]], ...] = (of_python, of_the_site)
    for ask in asks:
        try:
            findings, skipped = ask(project)
        except Problem as problem:
            findings, skipped = [], [str(problem)]
        found += findings
        unasked += skipped
    valid = {each.advisory for each in exceptions if each.until >= today}
    open_ = [finding for finding in found if not valid & {*finding.names}]
    for finding in found:
        print(f"{'found' if finding in open_ else 'excepted'}: {finding}")
    for each in exceptions:
        if each.advisory not in valid:
            print(
                f"the exception for {each.advisory} ended on {each.until}; decide again whether it is needed "
                f"({each.reason})"
            )
        elif not unasked and not any(each.advisory in finding.names for finding in found):
            print(
                f"the exception for {each.advisory} is not needed: no pinned package is affected; remove it from "
                "pyproject.toml"
            )
    for line in unasked:
        print(f"could not be checked: {line}")
    if not found and not unasked:
        print("no pinned package has a known vulnerability")
    return 1 if open_ else UNASKED if unasked else 0


def excepted(project: Project, today: date) -> list[Excepted]:
    """The exceptions that `pyproject.toml` makes.

    Raises:
        Problem: if an exception lacks its reason or its day, or if the day is too far in the future.
    """
    settings = tomllib.loads((project.root / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings.get("tool", {}).get("zero-or-nan", {}).get("audit-exceptions", [])
    for each in listed:
        # `type(…) is date`, because a datetime is a date too, but can't be compared with one.
        whole = set(each) == {"advisory", "reason", "until"} and type(each["until"]) is date
        if not whole or not each["advisory"] or not each["reason"] or each["until"] - today > LONGEST:
            raise Problem(
                f'pyproject.toml: write an exception as {{advisory = "…", reason = "…", until = 2027-01-31}}, with a '
                f"date at most {LONGEST.days} days ahead; it is {each}"
            )
    return [Excepted(**each) for each in listed]


def of_python(project: Project) -> tuple[list[Finding], list[str]]:
    """The findings of pip-audit in `requirements.txt`, and what it could not check.

    pip-audit calls a package “skipped” if its service does not answer for it. Without any finding, it then reports
    success.
    """
    command = f"{sys.executable} -m pip_audit --no-deps --disable-pip --format json --progress-spinner off"
    done = subprocess.run(
        [*command.split(), "-r", "requirements.txt"], cwd=project.root, capture_output=True, text=True
    )
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError) as error:
        said = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise Problem(f"pip-audit gave no result: {said[-1]}") from error
    findings = [
        Finding(
            f"{package['name']} {package['version']}",
            (vulnerability["id"], *vulnerability.get("aliases", [])),
            ", ".join(vulnerability["fix_versions"]),
        )
        for package in packages
        for vulnerability in package.get("vulns", [])
    ]
    skipped = [str(package["skip_reason"]) for package in packages if "skip_reason" in package]
    return findings, [f"{skipped[0]}; this holds for {len(skipped)} of {len(packages)} packages"] if skipped else []


def of_the_site(project: Project) -> tuple[list[Finding], list[str]]:
    """The findings of npm in the lock file of the site's packages.

    npm exits with 1 for a finding too, so its status is not checked.
    """
    command = ["npm", "audit", "--json", "--prefix", str(MODULES.parent)]
    try:
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
        said = dict(json.loads(done.stdout or "{}"))
    except FileNotFoundError as error:
        raise Problem("npm is not installed: `make browser` installs it") from error
    except (ValueError, TypeError) as error:
        raise Problem(f"npm audit gave no JSON, but this: {(done.stdout + done.stderr).strip()[-1000:]}") from error
    if "error" in said:
        why = said.get("message") or said["error"].get("summary") or done.stderr.strip()
        raise Problem(f"npm audit got no answer from its registry: {why}")
    if "vulnerabilities" not in said:
        raise Problem("npm audit gave no result")
    return [
        Finding(f"{name} {via['range']}", (via["url"].rpartition("/")[2],), "see " + via["url"])
        for name, package in sorted(said["vulnerabilities"].items())
        for via in package["via"]
        if isinstance(via, dict)  # the others are names of packages through which this advisory applies
    ], []
