"""The threads that pages name. A wrong digit names another thread, which exists too, so nobody notices it.

`results/threads.txt` lists every thread, as in `pytorch#4132`. `make record` writes the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..project import Problem, Project, page_text, write

_LINK = re.compile(r"\[([^\]]*)\]\(https://github\.com/[\w.-]+/([\w.-]+)/(?:issues|pull|discussions)/(\d+)")
_NAME = re.compile(r"(?<![\w./-])[A-Za-z][\w.-]*#\d{2,}\b")
_NUMBERED = re.compile(r"(?:.*#)?(\d+)")


def check_threads(project: Project) -> None:
    """Check that the text of each link names the thread that it leads to, and that every thread is listed.

    Raises:
        Problem: with each link and each thread for which this is not so.
    """
    listed = project.threads.read_text(encoding="utf-8").split() if project.threads.is_file() else []
    wrong = []
    for page, text, thread in _named(project):
        shown = _NUMBERED.fullmatch(text)
        if shown and shown[1] != thread.partition("#")[2]:
            wrong.append(f"{page}: the text of a link is {text}, but the link leads to {thread}")
        if thread not in listed:
            wrong.append(f"{page}: {thread} is not in results/{project.threads.name}")
    if wrong:
        raise Problem(
            "\n".join(dict.fromkeys(wrong)) + "\nCompare each number with the thread itself. If the page is right, run "
            "`make record`, and commit results/"
        )


def record_threads(project: Project) -> None:
    """Write the list of all threads."""
    if threads := sorted({thread for *_, thread in _named(project)}):
        write(project.threads, "\n".join(threads) + "\n")


def _named(project: Project) -> Iterator[tuple[str, str, str]]:
    """The page, the text of the link, and the thread. A thread without a link is its own text."""
    readme = project.root / "README.md"
    for page in [*project.pages, *([readme] if readme.is_file() else [])]:
        text = page_text(page)
        for link in _LINK.finditer(text):
            yield page.name, " ".join(link[1].split()), f"{link[2]}#{link[3]}"
        for name in _NAME.findall(text):
            yield page.name, name, name
