"""Begins a new chapter: its page in the shape of the others, its line in the contents, and its thread.

The author then fills in the gaps. The page runs at once. Its claims have `...` in place of the expected value, and such
a claim raises. Therefore the build fails, and names the next cell to fill in. All files are written, or none.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import yaml

from ..project import Problem, Project, page_text, write

MARK = "Fill in"
"""The words before every text that a person has to write. The tests fail if these words are still on a page."""

TEMPLATE = Path(__file__).with_name("chapter_template.md")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_END = ")\nTHREADS"
"""The end of the list of threads."""


def scaffold(project: Project, name: str) -> str:
    """Begin a chapter.

    Args:
        project: the checkout.
        name: the name of the page: lower-case words with hyphens between them. `issue-12345` is about the issue of
            PyTorch with this number.

    Returns:
        A text that says which files were written, and what to do next.

    Raises:
        Problem: if the name is not allowed or already used, or if a file has an unexpected form. No file is written
            then.
    """
    if not _NAME.fullmatch(name):
        raise Problem(
            f"{name!r} can't be the name of a page: use lower-case letters, digits and hyphens, as in issue-12345"
        )
    page = project.root / "chapters" / f"{name}.md"
    if page.exists() or project.name(page) in project.names:
        raise Problem(f"chapters/{name}.md exists, or is in _toc.yml; edit it, or choose another name")
    contents, threads = project.root / "_toc.yml", project.helpers / "threads.py"
    number = re.fullmatch(r"issue-([1-9]\d*)", name)
    key, label = (number[1], f"pytorch#{number[1]}") if number else (name, name)
    text = page_text(TEMPLATE).replace("@KEY@", key).replace("@LABEL@", label)
    new = {page: text, contents: with_line(page_text(contents), name)}
    before = page_text(threads)
    if (after := with_thread(before, key, bool(number))) != before:
        new[threads] = after
    _write_all(new)
    files = ", ".join(path.relative_to(project.root).as_posix() for path in new)
    return (
        f"written: {files}\n"
        f"Now replace every “{MARK}: …” in these files, and the code of the page by your own. Replace each ... in a\n"
        f"claim by what you expect. make check CHAPTER={name} names the next claim to fill in."
    )


def with_line(contents: str, name: str) -> str:
    """A table of contents with one more page, the last of the first part.

    Raises:
        Problem: if the contents have no list to which the page could be added.
    """
    settings = yaml.safe_load(contents)
    first = (settings.get("parts") or [settings])[0].get("chapters") or []
    title = f'title: "{MARK}: a short title"'
    if not first:
        if set(settings) - {"format", "root"}:
            raise Problem(f"_toc.yml has no list of chapters to which {name} could be added")
        return f"{contents.rstrip()}\nchapters:\n  - file: chapters/{name}\n    {title}\n"
    lines = contents.splitlines()
    last = max(
        at for at, line in enumerate(lines) if re.fullmatch(rf"\s*- file: {re.escape(first[-1]['file'])}\s*", line)
    )
    indent = lines[last][: lines[last].index("-")]
    end = last + 1
    while end < len(lines) and lines[end].startswith(f"{indent}  "):
        end += 1
    lines[end:end] = [f"{indent}- file: chapters/{name}", f"{indent}  {title}"]
    return "\n".join(lines) + "\n"


def with_thread(threads: str, key: str, is_issue: bool) -> str:
    """The list of threads with one more thread, unless the list has it already.

    Raises:
        Problem: if the list does not end as expected.
    """
    if re.search(rf'upstream\(\s*{key},|Thread\(\s*"{key}",', threads):
        return threads
    if threads.count(_END) != 1:
        raise Problem(
            f"src/helpers/threads.py has no line {_END.split()[-1]} after a list; restore it with git checkout"
        )
    facts = [key] if is_issue else [f'"{key}"', f'"{MARK}: the place, and its number or year"']
    facts.append(f'"{MARK}: the title of the thread"')
    if not is_issue:
        facts.append(f'"https://{MARK.replace(" ", "-").lower()}"')
    facts.append(f'"{MARK}: Open, Closed or Answered. What was decided."')
    facts.append(f'looked_up="{datetime.date.today().isoformat()}"')
    body = "".join(f"        {fact},\n" for fact in facts)
    return threads.replace(_END, f"    {'upstream' if is_issue else 'Thread'}(\n{body}    ),\n{_END}")


def _write_all(new: dict[Path, str]) -> None:
    """Write all files, or leave all of them unchanged."""
    before = {path: path.read_bytes() if path.exists() else None for path in new}
    try:
        for path, text in new.items():
            write(path, text)
    except BaseException:
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            elif path.read_bytes() != content:
                write(path, content)
        raise
