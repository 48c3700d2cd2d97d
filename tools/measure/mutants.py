"""Whether the tests notice a fault in the code: one place is mutated at a time, and the tests that run it must fail.

`cosmic-ray` makes the mutations. Its own command is not used, because it runs all tests for each of them. `noticed`
asks the same question about the pages of the book, whose cells `mutations` changes.
"""

from __future__ import annotations

import ast
import difflib
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

from ..project import Problem, Project, named
from ..steps.git import git
from .covering import Covering
from .records import keep, made_with

FOLDERS = ("src/zero_or_nan", "src/helpers", "tools")
KILLED, SURVIVED, TIMED_OUT, NOT_COVERED = OUTCOMES = ("killed", "survived", "timed out", "not covered")
_KINDS = OperatorProvider()
_OPERATORS = [_KINDS[name]() for name in _KINDS if not _KINDS[name].arguments()]


@dataclass
class Mutant:
    """One change of one file."""

    file: str
    line: int
    before: str
    after: str

    @property
    def diff(self) -> str:
        before, after = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.file, self.file, n=2, lineterm=""))

    @property
    def change(self) -> list[str]:
        """The lines that were removed and added, each after its sign."""
        return [line for line in self.diff.splitlines()[2:] if line[0] in "+-" and line[1:].strip()]


def mutants(project: Project, *names: str, count: int = 40, seed: int | None = None) -> None:
    """Run the tests on mutants of the last commit, and write the outcomes to `results/measured/mutants.json`.

    Everything happens in a copy. Only the tests of `make test-fast` run, so a line of slow tests is not covered.

    Args:
        project: the checkout.
        names: files and folders, such as `src/zero_or_nan/masks`; all code by default.
        count: how many mutants to draw. No two are on the same line.
        seed: the number that an earlier run printed, to draw its mutants again.

    Raises:
        Problem: if there is no such file or folder, or if git or the tests can't run.
    """
    commit = git(project, "rev-parse", "HEAD")
    if not commit:
        raise Problem("git finds no commit here, and mutants are made of the last commit: commit your files first")
    listed = git(project, "ls-tree", "-r", "--name-only", "HEAD", "--", *FOLDERS) or ""
    code = [name for name in listed.splitlines() if name.endswith(".py")]
    folders = {folder.as_posix(): None for name in code for folder in Path(name).parents if folder.name}
    chosen = named([name.rstrip("/") for name in names], [*folders, *code], "file or folder of code") or FOLDERS
    if git(project, "status", "--porcelain", "--", *FOLDERS, "tests"):
        print("changes that are not committed are left out", flush=True)
    seed = seed or random.randrange(1, 10**6)
    print(f"the seed of this run is {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        covering = Covering(project, commit, Path(folder) / "copy")
        files = [name for name in code if any(f"{name}/".startswith(f"{part}/") for part in chosen)]
        found = []
        for number, mutant in enumerate(islice(drawn(covering.copy, files, random.Random(seed)), count), 1):
            tests = covering.tests(mutant.file, mutant.line)
            found.append((outcome := _outcome(covering, mutant, tests), mutant))
            print(f"{number:>3} of {count}  {outcome}: {mutant.file}:{mutant.line}, {len(tests)} tests", flush=True)
    survivors = [mutant for outcome, mutant in found if outcome == SURVIVED]
    counts = Counter(outcome for outcome, _ in found)
    print(*(mutant.diff for mutant in survivors), sep="\n")
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES), flush=True)
    rows = [{"file": each.file, "line": each.line, "change": each.change} for each in survivors]
    of = {"made_with": made_with(), "commit": commit, "seed": seed, "of": list(chosen), "count": len(found)}
    keep(project, "mutants", {**of, **{each.replace(" ", "_"): counts[each] for each in OUTCOMES}, "survivors": rows})


def _outcome(covering: Covering, mutant: Mutant, tests: Sequence[str]) -> str:
    """What happens to a mutant when these tests run."""
    if not tests:
        return NOT_COVERED
    path = covering.copy / mutant.file
    path.write_text(mutant.after, encoding="utf-8")
    try:
        passed = covering.passes(tests)
        return TIMED_OUT if passed is None else SURVIVED if passed else KILLED
    finally:
        path.write_text(mutant.before, encoding="utf-8")


def drawn(root: Path, files: Sequence[str], chance: random.Random) -> Iterator[Mutant]:
    """Mutants of lines that are drawn by chance, one for each line that has any."""
    text = {file: (root / file).read_text(encoding="utf-8") for file in files}
    lines = [(file, number + 1) for file in files for number in range(text[file].count("\n"))]
    for file, line in chance.sample(lines, len(lines)):
        changed = list(_changed(text[file], line))
        chance.shuffle(changed)
        for operator, occurrence in changed:
            after = mutate_code(text[file], operator, occurrence)
            if meaning(after) not in (None, meaning(text[file])):
                yield Mutant(file, line, text[file], after)
                break


def _changed(code: str, line: int) -> Iterator[tuple[Operator, int]]:
    """Each operator of `cosmic-ray` that applies at a line, and the number of the place in the order of the file."""
    nodes = list(ast_nodes(get_ast(code)))
    here = [node for node in nodes if node.start_pos[0] <= line <= node.end_pos[0]]
    for operator in _OPERATORS:
        if any(at == line for node in here for (at, _), _ in operator.mutation_positions(node)):
            places = [at for node in nodes for (at, _), _ in operator.mutation_positions(node)]
            yield from ((operator, i) for i, at in enumerate(places) if at == line)


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
