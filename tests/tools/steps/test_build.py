"""The build on a small book: what stops it, what it says then, and what it does not do twice."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from scratch import Book, copied, edit, end, processes, wait_for

from tools.project import Project
from tools.steps.execute import cached
from tools.steps.site import site_digest

CASE = 'from helpers import Case\n\ncase = Case("10729")'
HOLDS = 'case.claim("vanilla", "x.grad", [1.0, 2.0], [1.0, 2.0])'

# Each chapter looks for what the others might leave behind, after they had time to.
LEAVE = """\
import builtins, os, time
from pathlib import Path
import numpy as np
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
builtins.left_behind = leaked = os.environ["LEFT_BEHIND"] = "one"
np.left_behind = 1
Path("../left").touch()"""
LOOK = """\
import builtins, os, time
from pathlib import Path
import numpy as np
import torch

while not Path("../left").exists():
    time.sleep(0.05)
assert torch.get_default_dtype() is torch.float32
assert torch.initial_seed() != 7
assert not hasattr(builtins, "left_behind") and not hasattr(np, "left_behind")
assert "leaked" not in globals() and "LEFT_BEHIND" not in os.environ"""


def states(output: str) -> dict[str, str]:
    """What the build said of each chapter: `cached`, or that it ran."""
    lines = re.findall(r"^  ([\w-]+) +(cached|[\d.]+ s) ", output, re.MULTILINE)
    return {name: "cached" if state == "cached" else "ran" for name, state in lines}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Book, subprocess.CompletedProcess[str]]:
    """A book after its first build. Leave it as it is: `book` is a copy to change."""
    book = Book(
        tmp_path_factory.mktemp("built") / "book",
        {
            "claims": [CASE, HOLDS, LEAVE],
            "words": ["from helpers import show", 'print(show.page("x")[:15])', LOOK],
            "plain": ["print(6 * 7)"],
        },
    )
    done = book.here("book")
    assert done.returncode == 0, done.stdout + done.stderr
    return book, done


@pytest.fixture
def book(built, tmp_path: Path) -> Book:
    """A built book of one's own. Its site is left out: it can be rendered again."""
    return copied(built[0].root, tmp_path / "book")


def test_a_book_whose_claims_hold_becomes_a_site(built):
    book, done = built
    assert states(done.stdout) == {"claims": "ran", "words": "ran", "plain": "ran"}
    *_, summary, last = done.stdout.splitlines()
    assert "3 chapters, 1 of 1 claims and verdicts held" in summary
    assert last.endswith(f".buildinfo: {site_digest(Project(book.root))[:16]}")
    assert "42" in book.page("plain")
    assert "x.grad" in book.page("claims")
    assert (book.site / "index.html").is_file()


def test_only_a_chapter_whose_code_was_edited_is_executed_again_and_the_last_three_states_are_kept(book):
    edit(book.chapter("words"), "Words of words.", "Other words.")
    for now, new in ((7, 8), (8, 9), (9, 10)):
        edit(book.chapter("plain"), f"6 * {now}", f"6 * {new}")
        done = book.here("check")
        assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith("all results reproduce")
        assert states(done.stdout) == {"claims": "cached", "words": "cached", "plain": "ran"}
    project = Project(book.root)
    for now, is_kept in ((10, True), (8, True), (7, False)):
        edit(book.chapter("plain"), "6 * 10", f"6 * {now}")
        assert (book.chapter("plain") in cached(project)) is is_kept
        edit(book.chapter("plain"), f"6 * {now}", "6 * 10")


PIECES = 'print("a line", flush=True, end="")\nprint(" in two pieces")'
BEGINS = """\
import os
import warnings
import torch
before = {name for name in globals() if not name.startswith("_")} - set(dir(__builtins__))
torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
warnings.warn("something else")
print("names:", sorted(before - {"In", "Out", "exit", "quit", "get_ipython", "open"}))
print("threads:", os.environ["OMP_NUM_THREADS"])"""


def begins_as_every_kernel_does(book: Book) -> bool:
    """Whether the kernel of the chapter `words` had the settings of the build, and none of whoever builds."""
    cells = cached(Project(book.root))[book.chapter("words")]["cells"]
    text = "\n".join("".join(output["text"]) for cell in cells for output in cell.get("outputs", []))
    wanted = ("UserWarning: something else", "names: ['os', 'torch', 'warnings']", "threads: 1\n")
    return all(each in text for each in wanted) and "prototype" not in text and str(book.root) not in text


def test_an_edited_helper_is_never_served_stale_and_every_build_begins_its_kernels_alike(tmp_path, monkeypatch):
    mine = tmp_path / "mine" / "profile_default" / "startup" / "mine.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine = 1\nimport warnings; warnings.simplefilter('error')\n", encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    # A small helper of its own: what the real ones import takes seconds in every kernel.
    words = [BEGINS, "import word\n\nprint(word.WORD)"]
    book = Book(tmp_path / "book", {"words": words, "plain": ["print(6 * 7)", PIECES]})
    helper = book.root / "src" / "word.py"
    helper.write_text("WORD = 'apple'\n", encoding="utf-8")
    assert set(states(book.here("check").stdout).values()) == {"ran"} and begins_as_every_kernel_does(book)

    # A plain `jupyter-book build .` in the same folder is as safe, ...
    edit(helper, "apple", "plum")
    done = book.jupyter_book()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plum" in book.page("words") and "apple" not in book.page("words") and begins_as_every_kernel_does(book)
    assert "42" in book.page("plain") and "a line in two pieces" in book.page("plain")

    # ... fails where a claim does, which in a reader's notebook would only be shown, ...
    book.append("plain", 'from helpers import Case\n\nCase("10729").claim("vanilla", "x.grad", [1.0], [2.0])')
    done = book.jupyter_book()
    assert done.returncode != 0
    assert "ClaimFailed" in done.stdout + done.stderr

    # ... and leaves its outputs to the next build, which goes back to what it knows.
    edit(book.chapter("plain"), "[2.0]", "[1.0]")
    assert states(book.here("check").stdout) == {"words": "cached", "plain": "ran"}


BAD = {
    "fine": ["print(1)"],
    "claims": [
        f"{CASE}\n{HOLDS}",
        'case.claim("vanilla", "y.grad", [1.5, 2.0, 4.0], [1.5, 3.0, 4.0], ulps=2)',
        'case.claim("masked", "z.grad", None, 0)',
        HOLDS,
        'from helpers.entries import outcome\n\ncase.verdict("x.grad", outcome([1.0, 2.0]), {"vanilla": "wrong"})',
    ],
    "others": [CASE, 'with case.raises("clamp first", "backward", RuntimeError):\n    raise ValueError("no")'],
    "raising": ["print(1)", "# first line\n1 / 0", "undefined_name"],
    "hanging": ["print(1)", "import time\n\ntime.sleep(600)", "print(2)"],
    "exiting": ["import os", "os._exit(1)"],
    "killed": ["import os\n\nos.kill(os.getpid(), 9)"],
    "allowed": [':tags: [raises-exception]\n\nraise RuntimeError("on purpose")'],
}


SAID = {
    "a number": f"""\
chapters/claims.md: claim does not hold: 10729 · vanilla · y.grad
on torch {version("torch")}, compared within 2 ulps

  element  expected  observed
  [0]      1.5       1.5
  [1]      3         2         <-- first difference
""",
    "nothing": f"""\
chapters/claims.md: claim does not hold: 10729 · masked · z.grad
on torch {version("torch")}, compared exactly

  expected  0  of shape []
  observed  None
""",
    "a verdict": f"""\
chapters/claims.md: verdict on 10729 · x.grad  (torch {version("torch")})
  vanilla: expected wrong, observed right  <-- differs
""",
    "an exception": f"""\
chapters/others.md: claim does not hold: 10729 · clamp first · backward
on torch {version("torch")}, compared exactly

  expected  raises RuntimeError
  observed  raises ValueError: no
""",
    "a raising cell": "chapters/raising.md, code cell 2 (# first line): raises ZeroDivisionError: division by zero\n",
    "later cells": "chapters/raising.md: 1 later cell failed too, perhaps because of the cell above\n",
    "a hanging cell": "chapters/hanging.md, code cell 2 (import time): does not end: still running after 5 s\n",
    "an exiting cell": "chapters/exiting.md, code cell 2 (os._exit(1)): ends its kernel: the Python process died\n",
    "a killed kernel": "chapters/killed.md, code cell 1 (import os): ends its kernel: the Python process died\n",
    "the sum": "\n4 of 6 claims and verdicts do not hold.\n",
    "the chapters": "\nCells failed in 4 chapters: raising, hanging, exiting, killed.\n",
}


def test_what_fails_is_told_and_leaves_the_site_of_yesterday_and_only_what_went_well_is_cached(tmp_path):
    book = Book(tmp_path / "book", BAD)
    book.site.mkdir(parents=True)
    (book.site / "index.html").write_text("the site of yesterday", encoding="utf-8")
    done = book.run("book", "--timeout", "5")
    assert done.returncode == 1
    assert [path.name for path in book.site.rglob("*")] == ["index.html"]
    assert (book.site / "index.html").read_text(encoding="utf-8") == "the site of yesterday"
    assert states(done.stdout) == dict.fromkeys(BAD, "ran")
    assert [chapter.stem for chapter in cached(Project(book.root))] == ["fine", "allowed"]
    said = re.sub(r" +$", "", done.stderr, flags=re.MULTILINE)
    assert {what: text for what, text in SAID.items() if text not in said} == {}
    assert len([line for line in said.splitlines() if line.startswith("chapters/")]) == 9
    for noise in ("Traceback", "KeyboardInterrupt", "destroyed", "IPKernelApp"):
        assert noise not in said
    counts = {"fine": 0, "allowed": 0, "claims": 3, "others": 1, "raising": 2, "hanging": 1, "exiting": 1, "killed": 1}
    tails = dict(re.findall(r"^  ([\w-]+) .*?(\d FAILED|ok)$", done.stdout, re.MULTILINE))
    assert tails == {name: f"{count} FAILED" if count else "ok" for name, count in counts.items()}


WAIT = """\
import os, subprocess, time
from pathlib import Path

if not Path("../again").exists():
    subprocess.Popen(["sleep", "300"])
    Path(f"../kernel-{os.getpid()}").touch()
    time.sleep(300)"""


def kernels(book: Book) -> list[int]:
    return [int(path.name.removeprefix("kernel-")) for path in book.root.glob("kernel-*")]


def ends_well(build: subprocess.Popen[str], root: Path, times: int = 1) -> bool:
    """Whether a build ends soon when Ctrl-C is pressed, with one line, and leaves no process."""
    for _ in range(times):  # the terminal sends the signal to all its processes
        with suppress(ProcessLookupError):
            os.killpg(build.pid, signal.SIGINT)
        time.sleep(0.02)
    assert wait_for(lambda: build.poll() is not None, 15)
    assert wait_for(lambda: not processes(root), 10), processes(root)
    *_, empty, last = build.stdout.read().split("\n")[:-1]
    wanted = "interrupted; run the same command again, and it continues from here"
    return (build.returncode, empty, last) == (130, "", wanted)


@pytest.mark.parametrize("how", ["Ctrl-C", "Ctrl-C that Python drops", "kill -9"])
def test_an_interrupted_build_leaves_no_process_and_goes_on_afterwards(tmp_path, how):
    book = Book(tmp_path / "book", {"quick": ["print(1)"], "slow": [WAIT], "slower": [f"{WAIT}\nprint(2)"]})
    # nbclient registers its own work for the end of Python, and some of it prints a traceback.
    book.edit("tools/steps/run.py", "import atexit\n", "import atexit\n\natexit.register(print, 'too late')\n")
    # As on a busy machine, the second Ctrl-C comes before anything is said of the first.
    caught = "    except KeyboardInterrupt:\n"
    book.edit("tools/__main__.py", caught, f"{caught}        __import__('time').sleep(0.2)\n")
    if how == "Ctrl-C that Python drops":
        book.edit("tools/__main__.py", "Timer(10, _end)", "Timer(1, _end)")
        loop = "            for future in as_completed(futures):\n"
        suppressed = "            with __import__('contextlib').suppress(KeyboardInterrupt):\n"
        drop = f"{suppressed}                futures[0].result()\n"
        book.edit("tools/steps/run.py", loop, f"{drop}{loop}")
    build = book.start("book")
    try:
        assert wait_for(lambda: len(kernels(book)) == 2 or build.poll() is not None, 60)
        assert {build.pid, *kernels(book)} <= {process.pid for process in processes(book.root)}
        if how == "kill -9":
            build.kill()
            assert wait_for(lambda: not processes(book.root), 10), processes(book.root)
        else:
            assert ends_well(build, book.root, times=3)
    finally:
        end(book.root, build)
    assert not (book.site / "index.html").exists()
    notebooks = [path.name for path in (book.root / "notebooks").iterdir()]
    assert sorted(notebooks) == ["quick.ipynb", "slow.ipynb", "slower.ipynb"]
    (book.root / "again").touch()
    done = book.here("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(done.stdout)["slow"] == states(done.stdout)["slower"] == "ran"


def files(book: Book) -> dict[Path, bytes]:
    every = (path for path in book.site.rglob("*") if path.is_file() and path.name != ".buildinfo")
    return {path.relative_to(book.site): path.read_bytes() for path in every}


def test_an_interrupted_renderer_goes_away_and_the_next_build_gives_the_same_bytes(book, built):
    wait = "p = __import__('pathlib').Path('rendering'); p.exists() or p.touch() or __import__('time').sleep(300)"
    old = "    return sorted(env.found_docs)"
    book.edit("tools/pages/cached_pages.py", old, f"    {wait}\n{old}")
    build = book.start("book")
    try:
        assert wait_for((book.root / "rendering").exists, 60)
        assert ends_well(build, book.root)
    finally:
        end(book.root, build)
    done = book.run("book")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files(book)) > 10 and files(book) == files(built[0])
