"""The issue in which the repository reports differences, read and written with GitHub's command `gh`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from ..project import Problem

LABEL = "upstream"
"""The label that identifies the issue.

Only people with triage rights can set it, so no other issue is taken for ours.
"""


@dataclass(frozen=True)
class Issue:
    """An open issue."""

    number: int
    title: str
    body: str


def opened(marker: str) -> Issue | None:
    """The oldest open issue with our label whose text begins with `marker`."""
    command = ("issue", "list", "--state", "open", "--label", LABEL, "--limit", "100", "--json", "number,title,body")
    found = [Issue(each["number"], each["title"], each["body"]) for each in json.loads(gh(*command))]
    ours = [issue for issue in found if issue.body.startswith(marker)]
    return min(ours, key=lambda issue: issue.number, default=None)


def open_new(title: str, body: str) -> str:
    """Open an issue, and return its address."""
    gh(
        "label",
        "create",
        LABEL,
        "--force",
        "--description",
        "Results of a PyTorch release differ from the record",
        "--color",
        "fbca04",
    )
    return gh("issue", "create", "--title", title, "--label", LABEL, "--body-file", "-", text=body).strip()


def rewrite(number: int, title: str, body: str) -> None:
    """Change the text of an issue. Nobody is notified."""
    gh("issue", "edit", str(number), "--title", title, "--body-file", "-", text=body)


def comment(number: int, text: str) -> None:
    """Add a comment to an issue. People who follow the issue are notified."""
    gh("issue", "comment", str(number), "--body-file", "-", text=text)


def close(number: int, text: str) -> None:
    """Close an issue with a comment."""
    gh("issue", "close", str(number), "--reason", "completed", "--comment", text)


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
