"""Who follows CONTRIBUTING.md to the letter, from a new thread to a chapter, ends with green tests."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from scratch import ROOT, Book, copied, edit

from tools.project import Project
from tools.steps.environment import cache_folder
from tools.steps.read import read

NAME, QUERY = "log-under-a-mask", "loss is nan after log of zero in where"

THREAD = """\
    Thread(
        "log-of-zero",
        "PyTorch forum 1",
        "NaN gradient of log under torch.where",
        "https://discuss.pytorch.org/t/log-of-zero/1",
        "Answered: select before the logarithm.",
    ),
)
THREADS"""
EDITS = {
    "src/helpers/threads.py": (")\nTHREADS", THREAD),
    "_toc.yml": ("chapters/slicing-nan\n", f"chapters/slicing-nan\n      - file: chapters/{NAME}\n"),
    "chapters/welcome.md": ("|---|---|\n", f"|---|---|\n| The loss is NaN after `log` | [Log of zero]({NAME}.md) |\n"),
    "tests/site/test_search.py": ("\nQUERIES = {\n", f'\nQUERIES = {{\n    "{QUERY}": ("{NAME}", 8),\n'),
}
"""What is changed besides the new page, in every file that the text names: a place in it and what follows."""

PAGE = {
    "At a glance": """\
- **Symptom.** `torch.where` discards the logarithm of 0, and its gradient is NaN.
- **Cause.** 0 × inf.
- **Fix.** Select first.

```{code-cell} ipython3
import torch

x = torch.tensor([1.0, 0.0], requires_grad=True)
x[x > 0].log().sum().backward()
print(x.grad)
```

```{code-cell} ipython3
:tags: [hide-input]

from helpers import MASKED, Case, backward_figure, reference

nan = float("nan")
case = Case("log-of-zero")
case
```
""",
    "What happens": """\
```{code-cell} ipython3
x = torch.tensor([1.0, 0.0], requires_grad=True)
loss = torch.where(x > 0, x.log(), torch.zeros(2)).sum()
loss.backward(retain_graph=True)
print(x.grad)
```

```{code-cell} ipython3
:tags: [hide-cell]

case.claim("vanilla", "x.grad", x.grad, [1.0, nan])
```
""",
    "Why": """\
```{code-cell} ipython3
:tags: [hide-input]

backward_figure(loss, {"x": x}, caption="Backward through where over log, at 1 and 0.")
```
""",
    "With torch.masked": """\
```{code-cell} ipython3
from torch.masked import masked_tensor

mx = masked_tensor(x.detach(), x.detach() > 0, requires_grad=True)
mx.log().sum().backward()
print(mx.grad)
```

```{code-cell} ipython3
:tags: [hide-cell]

case.claim("masked", "x.grad", mx.grad, [1.0, MASKED])
```
""",
    "With ignoring.backward": """\
```{code-cell} ipython3
from zero_or_nan import ignoring

x = torch.tensor([1.0, 0.0], requires_grad=True)
ignoring.backward(torch.where(x > 0, x.log(), torch.zeros(2)).sum())
print(x.grad)
```

```{code-cell} ipython3
:tags: [hide-cell]

case.claim("ignoring", "x.grad", x.grad, [1.0, 0.0])
```
""",
    "Results compared": """\
```{code-cell} ipython3
:tags: [hide-input]

used = x.detach() > 0
wanted = reference(lambda x: x.log().sum(), x.detach(), used=used)
words = {"vanilla": "contaminated", "masked": "right", "ignoring": "right"}
case.verdict("x.grad", wanted, words)
```
""",
    "What to do": "Select the positive elements before the logarithm.\n",
    "Exercises": """\
**1.** What is the slope of the logarithm at 1?

```{code-cell} ipython3
:tags: [hide-cell, solution]

x = torch.tensor(1.0, requires_grad=True)
x.log().backward()
print(x.grad)
```

**2.** And at 2?

```{code-cell} ipython3
:tags: [hide-cell, solution]

x = torch.tensor(2.0, requires_grad=True)
x.log().backward()
print(x.grad)
```
""",
}

SUBJECT = """
import sys, pytest
from pathlib import Path

OTHERS = {path.stem for path in Path("chapters").glob("*.md")} - {NAME}

class Subject:
    # Of the tests of the tools, those that look at this checkout's own pages; the others make books of their own.
    # A test that is repeated for each chapter is run for the new one alone.
    def pytest_collection_modifyitems(self, config, items):
        kept = []
        for item in items:
            names, path = set(getattr(item, "fixturenames", ())), item.path.as_posix()
            own = "/tests/tools/" not in path or names & {"behind", "facts", "pages", "site"}
            values = item.callspec.params.values() if hasattr(item, "callspec") else ()
            about = {value for value in values if isinstance(value, str)}
            if QUERY in item.name or own and not names & {"browser", "checkout", "tmp_path"} and not about & OTHERS:
                kept.append(item)
        assert any(QUERY in item.name for item in kept) and any(NAME in item.name for item in kept)
        items[:] = kept

where = ["tests/helpers/test_threads.py", "tests/chapters", "tests/site", "tests/tools"]
sys.exit(pytest.main([*where, "-q", "-p", "no:cacheprovider"], plugins=[Subject()]))
"""
"""The tests that a chapter is subject to; of those in a browser, the one of its query."""


def section(title: str) -> str:
    """The text below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


STEPS = section("A chapter")


def front_matter(root: Path) -> str:
    """That of another chapter, in this one's words."""
    text = (root / "chapters" / "where-over-division.md").read_text(encoding="utf-8").split("\n---\n")[0]
    words = {
        "title": "NaN gradient from the logarithm of 0 under torch.where, in PyTorch",
        "description": "Why the logarithm of 0 gives a NaN gradient although torch.where discards it.",
        "keywords": f"{QUERY}, LogBackward0",
    }
    for key, value in words.items():
        text = re.sub(rf'(?m)^    {key}: ".*"$', f'    {key}: "{value}"', text)
    return text + "\n---\n"


def page(root: Path) -> str:
    """A chapter of the shape that the text asks for."""
    shape = re.search(r"Keep the shape: (.*?\*)\.\s", STEPS, re.DOTALL)
    headings = re.findall(r"\*([^*]+)\*", " ".join(shape[1].split()))
    parts = [f"## {heading}\n\n{PAGE[heading]}" for heading in headings]
    title = "# NaN gradient from the logarithm of 0 under torch.where · forum 1\n"
    return "\n".join([front_matter(root), title, *parts])


@pytest.fixture
def checkout(site: Path, tmp_path: Path) -> Book:
    """A copy of this checkout with its tests, in which make finds an environment that is set up."""
    book = copied(ROOT, tmp_path / "checkout")
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    shutil.copytree(ROOT / "tests", book.root / "tests", ignore=ignored)
    modules = ROOT / "tests" / "site" / "node_modules"
    if modules.exists():
        (book.root / "tests" / "site" / "node_modules").symlink_to(modules.resolve())
    python = book.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    python.with_name(".ready").touch()
    return book


def run(book: Book, *command: str) -> None:
    done = subprocess.run(command, cwd=book.root, env=book.environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


def keep_outputs(book: Book, before: Path) -> None:
    """Take the outputs of all pages for new, to save their time, but not those of the page that lists the threads."""
    folder = cache_folder(Project(book.root))
    assert folder != before
    before.rename(folder)
    cache = get_cache(folder)
    cache.remove_cache(cache.match_cache_notebook(read(book.chapter("references"))).pk)


@pytest.mark.timeout(3600)  # a build and hundreds of tests: on a loaded machine many times their usual minutes
def test_a_new_chapter_by_the_steps_of_the_text_passes_its_tests(checkout):
    root = checkout.root
    outputs = cache_folder(Project(root))
    files = re.findall(r"`([\w/.<>-]+\.(?:py|md|yml))`", STEPS)
    assert set(files) == {"chapters/<name>.md", *EDITS}, "the text names other files than a chapter needs"
    checkout.chapter(NAME).write_text(page(root), encoding="utf-8")
    for path, (old, new) in EDITS.items():
        edit(root / path, old, new)
    keep_outputs(checkout, outputs)
    commands = list(dict.fromkeys(re.findall(r"`make ([a-z-]+)`", STEPS)))
    assert commands[-1] == "test"
    for name in commands[:-1]:
        run(checkout, "make", name)
    run(checkout, sys.executable, "-c", SUBJECT.replace("QUERY", repr(QUERY)).replace("NAME", repr(NAME)))


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "chapters/how-this-book-is-checked.md"]
)
def test_every_command_that_a_text_names_is_there(name):
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"))
    named = re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert named and set(named) <= set(targets)
