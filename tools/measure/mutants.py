"""Whether the tests notice a fault in the code: one place is mutated at a time, and the tests that run it must fail.

`cosmic-ray` makes the mutations, and runs the tests on each. It would run all tests, so this file chooses those that
run the mutated line. One run of all fast tests under coverage says which these are.
"""

from __future__ import annotations

import ast
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec, TestOutcome
from coverage import CoverageData
from coverage.parser import PythonParser

from ..project import Problem, Project, named
from ..steps.git import git
from .records import keep, made_with

FOLDERS = ("src/zero_or_nan", "src/helpers", "tools")
KILLED, SURVIVED, TIMED_OUT, NOT_COVERED = OUTCOMES = ("killed", "survived", "timed out", "not covered")
START, SLOWER = 60, 3
"""The time limit of a run: the seconds in which pytest starts, and how many times their usual time the tests get."""


def mutants(project: Project, *names: str, count: int = 40, seed: int | None = None) -> None:
    """Run the tests on mutants of the last commit, and write the outcomes to `results/measured/mutants.json`.

    Everything happens in a copy. Only the tests of `make test-fast` run, so a line of slow tests is not covered.

    Args:
        project: the checkout.
        names: files and folders, such as `src/zero_or_nan/masks`; all code by default.
        count: how many mutants to draw.
        seed: the number that an earlier run printed, to draw its mutants again.

    Raises:
        Problem: if there is no such file or folder, or if git or the tests can't run.
    """
    listed = git(project, "ls-tree", "-r", "--name-only", "HEAD", "--", *FOLDERS)
    if not listed:
        raise Problem("git finds no commit here, and mutants are made of the last commit: commit your files first")
    code = [name for name in listed.splitlines() if name.endswith(".py")]
    folders = {folder.as_posix(): None for name in code for folder in Path(name).parents if folder.name}
    chosen = named([name.rstrip("/") for name in names], [*folders, *code], "file or folder of code") or FOLDERS
    seed = seed or random.randrange(1, 10**6)
    print(f"the seed of this run is {seed}; changes that are not committed are left out", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        if git(project, "clone", "--quiet", "--shared", str(project.root), str(copy)) is None:
            raise Problem(f"git can't clone {project.root} to {copy}: free some space there, or check the permissions")
        covering = Covering(copy)
        files = [copy / name for name in code if any(f"{name}/".startswith(f"{part}/") for part in chosen)]
        sizes, chance = [path.stat().st_size for path in files], random.Random(seed)
        counts, survivors = Counter[str](), []
        for number in range(1, count + 1):
            path, spec = None, None
            while path is None or spec is None:
                (path,) = chance.choices(files, sizes)
                spec = drawn(path, chance)
            file, line = path.relative_to(copy).as_posix(), spec.start_pos[0]
            tests = covering.tests(path, line)
            outcome, diff = covering.outcome(spec, tests)
            counts[outcome] += 1
            print(f"{number:>3} of {count}  {outcome}: {file}:{line}, {len(tests)} tests", flush=True)
            if outcome == SURVIVED:
                print(diff)
                change = [text for text in diff.splitlines() if text[:1] in "+-" and text[:3] not in ("+++", "---")]
                survivors.append({"file": file, "line": line, "change": change})
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES), flush=True)
    commit = git(project, "rev-parse", "HEAD")
    of = {"made_with": made_with(), "commit": commit, "seed": seed, "of": list(chosen), "count": count}
    found = {outcome.replace(" ", "_"): counts[outcome] for outcome in OUTCOMES}
    keep(project, "mutants", {**of, **found, "survivors": survivors})


def drawn(path: Path, chance: random.Random) -> MutationSpec | None:
    """A mutation of a file that is drawn by chance; None if no mutation changes what Python runs."""
    text = path.read_text(encoding="utf-8")
    nodes, found = list(ast_nodes(get_ast(text))), []
    for name in operator_names():
        if not (kind := get_operator(name)).arguments():
            places = (place for node in nodes for place in kind().mutation_positions(node))
            found += [(name, occurrence, *place) for occurrence, place in enumerate(places)]
    for name, occurrence, start, end in chance.sample(found, len(found)):
        if meaning(mutate_code(text, get_operator(name)(), occurrence)) not in (None, meaning(text)):
            return MutationSpec(path, name, occurrence, start, end)
    return None


def meaning(code: str) -> str | None:
    """What Python runs of the code, without annotations and what only a type checker reads; None if nothing runs.

    >>> meaning("x: int | None = 1") == meaning("x: int & None = 1") != meaning("x: int | None = 2")
    True
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for field in {"annotation", "returns"} & set(node._fields):
            setattr(node, field, None)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.test, node.body = ast.Constant(None), []
    return ast.dump(tree)


class Covering:
    """The fast tests that pass in a copy of the checkout, and the lines that each of them runs.

    Args:
        copy: the top folder of the copy.

    Raises:
        Problem: if the tests can't run.
    """

    def __init__(self, copy: Path) -> None:
        self._copy, found = copy, copy / "_build" / "coverage"
        print("running the fast tests once, to find out which lines each of them runs", flush=True)
        # A test has code in a file whose name is not UTF-8, and of such a file pytest can show only a native traceback.
        measured = "--cov --cov-context=test --cov-report= --tb=native -o junit_family=xunit1"
        command = self._command(f"{measured} --junitxml={shlex.quote(str(found / 'tests.xml'))}")
        # Without files of bytecode: two versions of a file may have the same length and the same second of writing.
        done = subprocess.run(shlex.split(command), env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        if done.returncode not in (0, 1):
            raise Problem("the tests can't run, and the output of pytest above says why: make test-fast must pass")
        self._data = CoverageData(str(found / "data"))
        self._data.read()
        self._seconds: dict[str, float] = {}
        for case in ElementTree.parse(found / "tests.xml").iter("testcase"):
            name = f"{case.get('file')}::{case.get('name')}"
            if case.find("failure") is case.find("error") is None:
                self._seconds[name] = float(case.get("time", 0))
            else:
                print(f"this test is left out, because it fails without a mutation: {name}", flush=True)

    def tests(self, path: Path, line: int) -> list[str]:
        """The passing tests that run a line, the fastest first.

        What runs when a file is imported, as a table that other files read, may matter to every test. Then the tests
        that run anything of the file come first.
        """
        runs = self._data.contexts_by_lineno(path.relative_to(self._copy).as_posix())
        parser = PythonParser(text=path.read_text(encoding="utf-8"))
        parser.parse_source()
        of_line = runs.get(line) or runs.get(parser.first_line(line), [])
        of_file = {each.rpartition("|")[0] for each in (sum(runs.values(), []) if "" in of_line else of_line)}
        tests = self._seconds if "" in of_line else self._seconds.keys() & of_file
        return sorted(tests, key=lambda test: (test not in of_file, self._seconds[test]))

    def outcome(self, spec: MutationSpec, tests: list[str]) -> tuple[str, str]:
        """What these tests say of a mutation, and its diff."""
        if not tests:
            return NOT_COVERED, ""
        # A change of the code may change the cases of a test, so all cases of the functions run.
        chosen = self._copy.with_name("tests.txt")
        chosen.write_text("\n".join({test.partition("[")[0]: None for test in tests}), encoding="utf-8")
        seconds = START + SLOWER * sum(self._seconds[test] for test in tests)
        found = mutate_and_test([spec], self._command(f"-x @{shlex.quote(str(chosen))}"), seconds)
        if found.test_outcome is TestOutcome.KILLED:
            return (TIMED_OUT if found.output == "timeout" else KILLED), found.diff
        return SURVIVED, found.diff

    def _command(self, options: str) -> str:
        """A command that runs fast tests in the copy, with the code of the copy."""
        paths = os.pathsep.join([str(self._copy / "src"), str(self._copy), os.environ.get("PYTHONPATH", "")])
        pytest = f"{sys.executable} -m pytest -p no:cacheprovider -m 'not slow' --rootdir=. {options}"
        return f"env -C {shlex.quote(str(self._copy))} PYTHONPATH={shlex.quote(paths)} {pytest}"
