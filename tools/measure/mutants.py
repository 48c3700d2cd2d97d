"""Whether the tests notice when the code is changed: each mutant of a source file should make one of them fail.

Nothing is changed in the checkout: the tests run on copies, in forks, two mutants at a time. A mutant's tests are those
that reach its statement by the last `coverage`, the quickest files first; all of its part where that is not known.
What was found is kept in `_build/mutants`: the same command goes on from there, and a mutant is tried again only when
its file has changed, or the test that noticed it, or, when none did, any test of its part.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import signal
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write
from .coverage import folder_of
from .mutations import Mutants
from .parts import PARTS, Part, files
from .reached import Reached, digest
from .trial import Copy, Found

WARM = ("torch", "numpy", "matplotlib.pyplot", "hypothesis.strategies", "jupytext", "myst_nb", "bs4", "playwright")
"""What most trials import; their forks have it already."""
BY_HAND = "tests/mutants.toml"
"""Survivors that a person has looked at, by file and text, and why no test is to notice them."""
_STRICT = re.compile(r",?\s*strict=\w+|,\s*(?=\))")
KILLED, SURVIVED, TIMED_OUT, EXPLAINED, INVALID = "killed", "survived", "timed out", "explained", "invalid"
"""What becomes of a mutant. It is timed out when its tests take far longer than those of the code: noticed, too.
Explained are survivors that need no test, with a reason: by a rule of `_reason`, or by hand in `tests/mutants.toml`."""
PATIENCE = 8.0
"""How many times as long as on the code the tests of a mutant may take; and 60 seconds more."""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant, and by which test; `of` tells the contents that it holds for."""

    file: str
    number: int
    line: int
    before: str
    after: str
    result: str
    by: str
    of: str


def mutants(project: Project, *names: str, sample: int | None = None) -> None:
    """Try mutants, tell each outcome, and then list those that no test noticed.

    Args:
        names: parts, files or folders; all parts without any. `results/measured/mutants.json` has whole parts alone.
        sample: how many of each part, the same ones at each time, in proportion from each of its files; None for all.

    Raises:
        Problem: when a name names nothing, or an explanation is of no mutant.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no trial outlives the command
    for module in WARM:
        importlib.import_module(module)
    explained = Explained(project)
    recorded: dict[str, Any] = {}
    for part, paths in _of(project, names):
        trials = Trials(project, part)
        whole = paths == trials.sources
        outcomes = [explained.judged(outcome) for outcome in trials.outcomes(paths, sample)]
        total = sum(len(trials.mutants(path)) for path in paths)
        summary = _summary(outcomes, total)
        if whole:
            recorded[part.name] = {**summary, "left_out": trials.left_out}
        print(f"{part.name}: {_told(summary)}")
        for survivor in summary["survivors"]:
            print(f"  {survivor['file']}:{survivor['line']}\n    - {survivor['before']}\n    + {survivor['after']}")
    if recorded:
        path = project.results / "measured" / "mutants.json"
        kept = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.is_file() else {}
        content = {"parts": {part.name: (kept | recorded)[part.name] for part in PARTS if part.name in kept | recorded}}
        write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"written: {path.relative_to(project.root)}")


def _of(project: Project, names: tuple[str, ...]) -> Iterator[tuple[Part, list[str]]]:
    """The parts, and the files of each, that are meant."""
    left = set(names)
    meant = []
    for part in PARTS:
        sources = _sources(project, part)
        if not names or part.name in names:
            left.discard(part.name)
            meant.append((part, sources))
            continue
        paths = []
        for name in names:
            below = [path for path in sources if path == name or path.startswith(f"{name.rstrip('/')}/")]
            paths += below
            left -= {name} if below else set()
        if paths:
            meant.append((part, sorted(set(paths))))
    if left:
        parts = ", ".join(part.name for part in PARTS)
        raise Problem(
            f"{', '.join(sorted(left))}: neither a part of the code ({parts}) nor a source file or folder of a part"
        )
    yield from meant


def _sources(project: Project, part: Part) -> list[str]:
    return [path for path in files(project, part.source) if path.endswith(".py")]


class Trials:
    """The mutants of one part, and the tests that try them."""

    def __init__(self, project: Project, part: Part) -> None:
        self.project = project
        self.part = part
        self.folder = project.build / "mutants" / part.name
        self.sources = _sources(project, part)
        self.reached = Reached(project, folder_of(project, part))
        self.left_out: list[str] = []
        """Tests that fail on a copy that is not mutated."""
        digests = [digest(project.root / path) for path in files(project, *part.tests)]
        self._all_tests = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
        self._mutants: dict[str, Mutants] = {}

    def mutants(self, path: str) -> Mutants:
        if path not in self._mutants:
            self._mutants[path] = Mutants((self.project.root / path).read_text(encoding="utf-8"))
        return self._mutants[path]

    def chosen(self, paths: list[str], sample: int | None) -> list[tuple[str, int]]:
        """Files and numbers of mutants; a larger sample has those of a smaller one."""
        total = sum(len(self.mutants(path)) for path in paths)
        found = []
        for path in paths:
            count = len(self.mutants(path))
            order = random.Random(path).sample(range(count), count)
            share = count if sample is None else min(count, -(-count * sample // total))
            found += [(path, number) for number in order[:share]]
        random.Random(0).shuffle(found)
        return found

    def outcomes(self, paths: list[str], sample: int | None) -> list[Outcome]:
        """What becomes of the chosen ones; those that were tried before are not tried again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Problem(
                    f"another command is already trying mutants of {self.part.name}: wait until it ends"
                ) from error
            return self._outcomes(paths, sample)

    def _outcomes(self, paths: list[str], sample: int | None) -> list[Outcome]:
        known = {(o.file, o.number): o for o in self._kept() if o.file in paths and self._holds(o)}
        chosen = self.chosen(paths, sample)
        seconds = self._seconds()
        done = [known[key] for key in chosen if key in known]
        todo = [key for key in chosen if key not in known]
        print(f"{self.part.name}: {len(chosen)} mutants; the result of {len(done)} is known from before", flush=True)
        jobs = (os.cpu_count() or 2, len(todo))
        if todo:
            fork = multiprocessing.get_context("fork")
            folders = fork.SimpleQueue()
            for number in range(min(jobs)):
                folders.put(self.folder / f"copy-{number}")
            with ProcessPoolExecutor(min(jobs), fork, _begin, (self, seconds, folders)) as pool:
                try:
                    futures = [pool.submit(_tried, path, number) for path, number in todo]
                    for future in as_completed(futures):
                        done.append(self._keep(future.result()))
                        last = done[-1]
                        by = f" by {last.by}" if last.by else ""
                        print(f"{len(done)}/{len(chosen)} {last.file}:{last.line} {last.result}{by}", flush=True)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        return done

    # What is known from before.

    @property
    def _log(self) -> Path:
        return self.folder / "outcomes.jsonl"

    def _kept(self) -> list[Outcome]:
        if not self._log.is_file():
            return []
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [Outcome(**json.loads(line)) for line in lines if line.endswith("}")]  # the last may be half a line

    def _keep(self, outcome: Outcome) -> Outcome:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(outcome)) + "\n")
        return outcome

    def _holds(self, outcome: Outcome) -> bool:
        if outcome.of != self.state(outcome.file, outcome.by) or outcome.number >= len(self.mutants(outcome.file)):
            return False
        mutant = self.mutants(outcome.file).mutant(outcome.number)  # another mutmut may count them in another way
        return (outcome.before, outcome.after) == (mutant.before, mutant.after)

    def state(self, path: str, by: str) -> str:
        """What tells whether an outcome still holds: the source file, and the test that noticed the mutant, or all."""
        test = by.partition("::")[0]
        seen = digest(self.project.root / test) if test and (self.project.root / test).is_file() else self._all_tests
        return f"{digest(self.project.root / path)} {seen}"

    # The tests.

    def _seconds(self) -> dict[str, float]:
        """How long each test takes on a copy that is not mutated; without those that fail there."""
        log = self.folder / "unchanged.json"
        kept: dict[str, Any] = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else {}
        known = {path: found for path, found in kept.items() if found["of"] == self._unchanged.get(path)}
        new = sorted(self._unchanged.keys() - known.keys())
        if new:
            print(f"{self.part.name}: running {len(new)} test files on an unchanged copy", flush=True)
            run = Copy(self.project, self.folder / "copy-0").run(new, 3600, first=False)
            if isinstance(run, str):
                raise Problem(f"the tests of {self.part.name} do not end, even on an unchanged copy: {run}")
            for path in new:
                took = {test: time for test, time in run.seconds.items() if test.partition("::")[0] == path}
                failed = [test for test in run.failed if test.partition("::")[0] == path]
                known[path] = {"of": self._unchanged[path], "seconds": took, "failed": failed}
            write(log, json.dumps(known))
        self.left_out = sorted(test for found in known.values() for test in found["failed"])
        took = {test: time for found in known.values() for test, time in found["seconds"].items()}
        return {test: time for test, time in took.items() if test not in self.left_out}

    @cached_property
    def _unchanged(self) -> dict[str, str]:
        """The files of tests, and what tells whether what is known of each still holds: all but the other tests."""
        digests = {path: digest(self.project.root / path) for path in files(self.project, *self.part.tests)}
        tests = {p for p in digests if Path(p).name.startswith("test_") or p in self.sources}
        others = [digests[path] for path in sorted(digests.keys() - tests)]
        sources = [digest(self.project.root / path) for path in self.sources]
        shared = " ".join(others + sources)
        return {path: hashlib.sha256(f"{digests[path]} {shared}".encode()).hexdigest()[:16] for path in sorted(tests)}

    def tests(self, path: str, first: int, last: int, seconds: dict[str, float]) -> dict[str, float]:
        """The tests that try a mutant of these lines, with the seconds that each takes.

        The quickest files come first: a quick test of a slow one may have to wait for what that one sets up.
        """
        reaching = self.reached.tests(path, first, last)
        files: dict[str, float] = {}
        for test, took in seconds.items():
            file = test.partition("::")[0]
            files[file] = files.get(file, 0.0) + took
        new = {file for file in files if not self.reached.is_as_it_was(file)}
        order = sorted(seconds, key=lambda test: (files[test.partition("::")[0]], seconds[test]))
        return {t: seconds[t] for t in order if reaching is None or t in reaching or t.partition("::")[0] in new}


_here: tuple[Trials, dict[str, float], Copy]
"""What a process that tries mutants was forked with, and where it tries them."""


def _begin(trials: Trials, seconds: dict[str, float], folders: Any) -> None:
    global _here
    _here = trials, seconds, Copy(trials.project, folders.get())


def _tried(path: str, number: int) -> Outcome:
    trials, seconds, copy = _here
    mutant = trials.mutants(path).mutant(number)

    def outcome(result: str, by: str = "") -> Outcome:
        return Outcome(path, number, mutant.line, mutant.before, mutant.after, result, by, trials.state(path, by))

    try:
        compile(mutant.code, path, "exec")
    except SyntaxError:
        return outcome(INVALID)
    tests = trials.tests(path, mutant.line, mutant.line + mutant.before.count("\n"), seconds)
    if not tests:
        return outcome(SURVIVED)
    copy.mutated(path, mutant.code, number)
    try:
        limit = 60 + PATIENCE * sum(tests.values())
        found = copy.run({test.partition("::")[0] for test in tests}, limit, list(tests))
    finally:
        copy.mended(path)
    if isinstance(found, Found):
        return outcome(KILLED, found.failed[0]) if found.failed else outcome(SURVIVED)
    return outcome(TIMED_OUT if found.startswith("no end") else KILLED, found)


def _reason(before: str, after: str) -> str:
    """Why a survivor of this kind needs no test; empty when there is no such reason.

    >>> _reason("zip(a, b, strict=True)", "zip(a, b, strict=None)")
    'strict= guards against a bug of ours: the lengths are the same by what stands before'
    >>> _reason("raise ValueError('No such page')", "raise ValueError('XXNo such pageXX')")
    'the wording of a text'
    >>> _reason("rule('add')", "rule('XXaddXX')")
    ''
    """
    if _STRICT.sub("", before) == _STRICT.sub("", after):
        return "strict= guards against a bug of ours: the lengths are the same by what stands before"
    marked = re.search(r"XX(.*)XX", after, re.DOTALL)
    if marked and before == after[: marked.start()] + marked[1] + after[marked.end() :]:
        changed = marked[1]
    elif before.casefold() == after.casefold():
        where = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        changed = before[where[0] : where[-1] + 1]
    else:
        return ""
    return "the wording of a text" if " " in changed.strip() else ""


class Explained:
    """The survivors that need no test."""

    def __init__(self, project: Project) -> None:
        self.rows = tomllib.loads((project.root / BY_HAND).read_text(encoding="utf-8")).get("mutant", [])
        for row in self.rows:
            path = project.root / row["file"]
            if not path.is_file() or _squeezed(row["before"]) not in _squeezed(path.read_text(encoding="utf-8")):
                raise Problem(f"{BY_HAND}: {row['file']} no longer contains {row['before']!r}; remove this row")

    def judged(self, outcome: Outcome) -> Outcome:
        """The outcome; of a survivor that is explained, with the reason."""
        if outcome.result != SURVIVED:
            return outcome
        why = _reason(outcome.before, outcome.after)
        for row in self.rows:
            same = (outcome.file, _squeezed(outcome.before)) == (row["file"], _squeezed(row["before"]))
            if same and _squeezed(outcome.after) in map(_squeezed, row["after"]):
                why = row["why"]
        return replace(outcome, result=EXPLAINED, by=why) if why else outcome


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _summary(outcomes: list[Outcome], total: int) -> dict[str, Any]:
    """What is recorded of a part."""
    valid = [outcome for outcome in outcomes if outcome.result != INVALID]
    counts = Counter(outcome.result for outcome in valid)
    noticed = counts[KILLED] + counts[TIMED_OUT]
    judged = len(valid) - counts[EXPLAINED]
    rows = sorted(outcomes, key=lambda o: (o.file, o.line, o.number))
    return {
        "mutants": total,
        "run": len(valid),
        "killed": counts[KILLED],
        "timed_out": counts[TIMED_OUT],
        "survived": counts[SURVIVED],
        "explained": counts[EXPLAINED],
        "noticed": round(100 * noticed / judged, 1) if judged else 100.0,
        "survivors": [_listed(row) for row in rows if row.result == SURVIVED],
        "reasons": [{**_listed(row), "why": row.by} for row in rows if row.result == EXPLAINED],
    }


def _listed(outcome: Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in ("file", "line", "before", "after")}


def _told(summary: dict[str, Any]) -> str:
    counts = ", ".join(f"{summary[name]} {name.replace('_', ' ')}" for name in ("killed", "timed_out", "survived"))
    return (
        f"{summary['run']} of {summary['mutants']} mutants were run: {counts}, {summary['explained']} explained; "
        f"the tests noticed {summary['noticed']} %"
    )
