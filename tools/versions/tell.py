"""Keeps one issue up to date with the findings of `watch`: opens it, rewrites it, closes it, with GitHub's `gh`."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..project import Problem, Project
from .differences import KINDS, Difference

LABEL = "upstream"
"""The label of the issue. Only people with triage rights can set it, so no other issue is taken for ours."""

MARKER = "<!-- watched:"
"""The beginning of the issue's text. After it come the digests of the differences. The next run compares them."""

ROOM = 60_000
"""The most characters of the issue's text. GitHub's limit is 65536. Further differences are counted but not listed."""


@dataclass(frozen=True)
class Watched:
    """The findings of `watch` on one build of PyTorch."""

    torch: str
    python: str
    checked: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Text:
    """The text of the issue. If there are no digests, there are no differences."""

    title: str
    body: str
    digests: frozenset[str]
    new: Mapping[str, str]
    """A line about each difference, by its digest."""


def tell(project: Project) -> None:
    """Open, rewrite or close the issue, and print what was done.

    Reads `_build/watched/BUILD/watched.json` for each build that the environment variable `BUILDS` names.

    Raises:
        Problem: if `BUILDS` names no build, or if `gh` fails.
    """
    builds = os.environ.get("BUILDS", "").split()
    if not builds:
        raise Problem(
            "BUILDS names no build: set it to the builds whose reports are expected, as in BUILDS='release nightly'"
        )
    reports = {build: read(project.build / "watched" / build / "watched.json") for build in builds}
    text, issue = written(reports, os.environ.get("RUN_URL", "")), opened()
    if issue is None and not text.digests:
        print("no differences")
    elif issue is None:
        about = "Results of a PyTorch release differ from the record"
        gh("label", "create", LABEL, "--force", "--description", about, "--color", "fbca04")
        new = ("issue", "create", "--title", text.title, "--label", LABEL, "--body-file", "-")
        print(f"opened {gh(*new, text=text.body).strip()}")
    elif not text.digests:
        said = f"{text.title}. {text.body}"
        gh("issue", "close", str(issue["number"]), "--reason", "completed", "--comment", said)
        print(f"closed #{issue['number']}: no differences are left")
    else:
        number, before = str(issue["number"]), digests(issue["body"])
        if (issue["title"], issue["body"].replace("\r\n", "\n").strip()) != (text.title, text.body.strip()):
            gh("issue", "edit", number, "--title", text.title, "--body-file", "-", text=text.body)  # notifies nobody
        if text.digests != before:
            gh("issue", "comment", number, "--body-file", "-", text=changed(text, before))
        same = "are the same as before" if text.digests == before else "changed"
        print(f"#{number} is up to date; its differences {same}")


def opened() -> dict[str, Any] | None:
    """The oldest open issue with our label whose text begins with `MARKER`: its number, title and body."""
    command = ("issue", "list", "--state", "open", "--label", LABEL, "--limit", "100", "--json", "number,title,body")
    ours = [issue for issue in json.loads(gh(*command)) if issue["body"].startswith(MARKER)]
    return min(ours, key=lambda issue: issue["number"], default=None)


def gh(*arguments: str, text: str = "") -> str:
    """The output of `gh`. `text` is its standard input.

    Raises:
        Problem: if `gh` is missing, or refuses; with its own message.
    """
    try:
        done = subprocess.run(["gh", *arguments], input=text, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Problem(
            "gh, GitHub's command line, is not installed: this command is made for a GitHub workflow, where gh exists"
        ) from error
    if done.returncode:
        raise Problem(f"gh {' '.join(arguments[:2])} failed: {done.stderr.strip()}")
    return done.stdout


def read(path: Path) -> Watched | None:
    """A report; None if the file is missing or incomplete, because that build could not be checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = tuple(Difference(**each) for each in content["differences"])
        return Watched(content["torch"], content["python"], content["claims"] + content["asked"], found)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def written(reports: Mapping[str, Watched | None], run: str = "") -> Text:
    """The issue's title and text.

    Args:
        reports: each report by the name of its build; None for a build without a report.
        run: the address of the workflow run that made the reports.
    """
    missing = Difference("could not be run", "installation", "everything", "runs", "gives no report")
    found = [
        (build, each) for build, report in reports.items() for each in (report.differences if report else [missing])
    ]
    lines = {
        each.digest(build): f"{build}: {each.kind}: {_code(each.where, each.what, each.observed)}"
        for build, each in found
    }
    named = sorted(lines)[:1000]  # more don't fit, and among a thousand differences a small change does not matter
    where = ", ".join(f"torch {report.torch}" if report else build for build, report in reports.items())
    looked = f" [The run that compared them]({run})." if run else ""
    if not found:
        count = sum(report.checked for report in reports.values() if report)
        return Text(
            f"No differences on {where}", f"{count} results were compared with the record.{looked}", frozenset(), {}
        )
    counts = ", ".join(f"{n} {kind}" for kind in KINDS if (n := sum(each.kind == kind for _, each in found)))
    parts = [
        f"{MARKER} {' '.join(named)} -->",
        "PyTorch gives other results now than the book and the library recorded. A workflow keeps this text up "
        "to date. It adds a comment when the list of differences changes, and closes the issue when no difference is "
        "left." + looked,
    ]
    # As many differences in each table as fit into the issue.
    bodies = ("\n\n".join([*parts, *_sections(reports, found, shown)]) for shown in (40, 20, 10, 5, 0))
    body = next((body for body in bodies if len(body) <= ROOM), parts[0])
    return Text(f"{where}: {counts}", body, frozenset(named), lines)


def digests(body: str) -> frozenset[str]:
    """The digests at the beginning of an issue's text."""
    first = body.partition("-->")[0].removeprefix(MARKER)
    return frozenset(re.findall(r"[0-9a-f]{8}", first))


def changed(text: Text, before: frozenset[str]) -> str:
    """The text of a comment about how the set of differences changed."""
    new = [line for digest, line in text.new.items() if digest not in before]
    lines = [
        f"The differences changed: {len(new)} new, {len(before - text.digests)} gone.",
        *(f"- {line}" for line in new),
    ]
    return "\n".join(lines[:41] + ["- …"] * (len(lines) > 41))


def _sections(reports: Mapping[str, Watched | None], found: list[tuple[str, Difference]], shown: int) -> Iterator[str]:
    """A heading for each build, and a table for each kind of difference, with the first `shown` differences."""
    for build, report in reports.items():
        yield f"## {build}: " + (f"{_code('torch ' + report.torch)}, Python {report.python}" if report else "no report")
        if not any(name == build for name, _ in found):
            yield "No differences."
        for kind, meaning in KINDS.items():
            own = [each for name, each in found if (name, each.kind) == (build, kind)]
            if own:
                yield f"### {kind.capitalize()}: {len(own)}\n\n{meaning}"
            if own and shown:
                yield _table(own[:shown])
            if own[shown:]:
                yield f"The log of the run lists {len(own) - shown} more."


def _table(differences: list[Difference]) -> str:
    rows = [(each.where, each.what, each.recorded, each.observed) for each in differences]
    lines = [f"| {' | '.join(_code(cell) for cell in row)} |" for row in rows]
    return "\n".join(["| where | what | recorded | observed |", "|---|---|---|---|", *lines])


def _code(*texts: str, limit: int = 120) -> str:
    """The texts as code, so that they can't contain a mention, a link, or the end of a table cell."""
    words = " · ".join(" ".join(text.split()) for text in texts)
    words = words if len(words) <= limit else words[: limit - 1] + "…"
    return f"<code>{html.escape(words).replace('|', '&#124;')}</code>"
