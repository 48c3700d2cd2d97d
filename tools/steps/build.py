"""Runs the steps in order, and prints a line for every chapter and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from ..project import Project
from ..versions.jax import check_boxes
from .claimed import Claimed
from .collect import ChapterRun, checked, collect, failed
from .execute import execute
from .outputs import Recorded, environment, record_outputs
from .pair import pair
from .record import check_records, record
from .render import RenderFailed, render
from .shape import lacking
from .shown import problems
from .site import COVERED, site_digest
from .threads import check_threads, record_threads


class Build:
    """One build of a checkout: the work that the commands `book`, `check` and `record` share.

    Args:
        project: the checkout.
        timeout: the most seconds that one cell may take.
    """

    def __init__(self, project: Project, timeout: int) -> None:
        self.project = project
        self.timeout = timeout
        self.started = time.monotonic()
        self.recorded, self.claimed = Recorded(), Claimed()

    def book(self) -> int:
        """Pair, execute, collect, render. Return the exit status.

        Raises:
            Problem: before any work, if a record is missing or broken.
        """
        self._check_first()
        if written := self._pair():
            print(f"notebooks rewritten from their chapters: {', '.join(path.name for path in written)}")
        runs = self._execute(self.project.chapters)
        if not self._report(runs) or not self._numbers_are_shown(self.project.pages, runs):
            return 1
        begun = time.monotonic()
        try:
            render(self.project)
        except RenderFailed as error:
            said = "All results reproduce, but Sphinx could not render the site; see its message above."
            print(f"\n{error}\n\n{said}", file=sys.stderr)
            return 1
        if faults := problems(self.project, runs):
            print("\n" + "\n\n".join(faults), file=sys.stderr)
            return 1
        print(f"rendered {len(self.project.pages)} pages in {time.monotonic() - begun:.1f} s")
        self._summary(runs, f"site: {self.project.site / 'index.html'} (to see it, run make serve)")
        print(f"digest of {COVERED}: {site_digest(self.project)[:16]}")
        return 0

    def notebooks(self) -> int:
        """Bring the notebooks up to date with their chapters."""
        check_records(self.project)
        print(f"{len(self._pair())} of {len(self.project.chapters)} notebooks rewritten")
        return 0

    def check(self, *names: str) -> int:
        """Execute and collect all chapters, or only the named ones. Return 0 if all results still reproduce."""
        self._check_first()
        chapters = self.project.chapters_called(*names)
        runs = self._execute(chapters)
        if not self._report(runs) or not self._numbers_are_shown(chapters if names else self.project.pages, runs):
            return 1
        self._summary(runs, "all results reproduce")
        return 0

    def record(self) -> int:
        """Execute, collect, and write the outcomes and the outputs of cells to `results/`."""
        runs = self._execute(self.project.chapters)
        good = self._report(runs)
        path = record(self.project, collect(runs), complete=good)
        if good:
            record_outputs(self.project, runs)
            record_threads(self.project)
        self._summary(runs, f"recorded: {path.relative_to(self.project.root)}")
        return 0 if good else 1

    def _pair(self) -> list[Path]:
        """Bring the notebooks up to date, print which were deleted, and return which were written."""
        changed = pair(self.project)
        written = [path for path in changed if path.exists()]
        if deleted := [path.name for path in changed if path not in written]:
            print(f"notebooks deleted, because no chapter has their name: {', '.join(deleted)}")
        return written

    def _check_first(self) -> None:
        check_records(self.project)
        check_threads(self.project)
        check_boxes(self.project)
        self.recorded, self.claimed = Recorded.read(self.project), Claimed(self.project)

    def _execute(self, chapters: list[Path]) -> list[ChapterRun]:
        width = max(len(chapter.stem) for chapter in chapters)

        def report(run: ChapterRun) -> None:
            facts = collect([run])
            bad = len(failed(facts)) + len(run.troubles) + len(self._differences(run))
            state = "cached" if run.cached else f"{run.seconds:5.1f} s"
            tail = f"{bad} FAILED" if bad else "ok"
            count = Counter(fact["type"] for fact in checked(facts))
            kinds = f"{_counted(count['claim'], 'claim')}, {_counted(count['verdict'], 'verdict')}"
            print(f"  {run.chapter.stem:{width}}  {state:>8}  {kinds:>23}  {tail}", flush=True)

        print(f"executing {_counted(len(chapters), 'chapter')}", flush=True)
        return execute(self.project, chapters, report, self.timeout)

    def _report(self, runs: list[ChapterRun]) -> bool:
        """Print everything that went wrong in any chapter, in one place at the end."""
        parts, changed = [], {}
        for run in runs:
            name = run.chapter.relative_to(self.project.root)
            for fact in failed(collect([run])):
                parts.append(f"{name}: {fact['text']}")
            for trouble in run.troubles[:1]:
                parts.append(f"{name}, code cell {trouble.cell} ({trouble.line}): {trouble.what}")
            more = len(run.troubles) - 1
            if more > 0:
                parts.append(
                    f"{name}: {more} later cell{'s' * (more > 1)} failed too, perhaps because of the cell above"
                )
            parts += [f"{name}: {fault}" for fault in ([] if run.troubles else lacking(run.notebook))]
            if differences := self._differences(run):
                changed[run.chapter.stem] = len(differences)
                parts += [f"{name}: {difference}" for difference in differences]
        if parts:
            print("\n" + "\n\n".join(parts), file=sys.stderr)
            facts = checked(collect(runs))
            if count := len(failed(facts)):
                print(f"\n{count} of {len(facts)} claims and verdicts do not hold.", file=sys.stderr)
            if stopped := [run.chapter.stem for run in runs if run.troubles]:
                print(f"\nCells failed in {_counted(len(stopped), 'chapter')}: {', '.join(stopped)}.", file=sys.stderr)
            if changed:
                print(
                    f"\n{_counted(sum(changed.values()), 'difference')} from the record, in {', '.join(changed)}. "
                    "If you changed the page on purpose, run `make record`, and commit results/.",
                    file=sys.stderr,
                )
        return not parts

    def _differences(self, run: ChapterRun) -> list[str]:
        """Where the page is not as recorded: its outputs, and what it states."""
        return [*self.recorded.differences(run), *self.claimed.differences(run)]

    def _numbers_are_shown(self, pages: list[Path], runs: list[ChapterRun]) -> bool:
        """Print the numbers in the text of these pages that they show nowhere else. Return whether there are none.

        In another environment than the recorded one nothing is checked, because the text describes the recorded one.
        """
        if self.recorded.made_with and not self.recorded.applies:
            return True
        from .prose import unfound  # here, because most builds have no new text

        notebooks = {run.chapter: run.notebook for run in runs}
        parts = [f"{page.name}, {each}" for page in pages for each in unfound(self.project, page, notebooks.get(page))]
        if parts:
            parts.append(
                f"\n{_counted(len(parts), 'number')} in the text of pages, but in no output, code or quotation of the "
                "same section. Show each number in a cell, correct it, or leave it out: CONTRIBUTING.md has examples."
            )
            print("\n" + "\n".join(parts), file=sys.stderr)
        return not parts

    def _summary(self, runs: list[ChapterRun], last: str) -> None:
        facts = checked(collect(runs))
        held = len(facts) - len(failed(facts))
        seconds = time.monotonic() - self.started
        chapters = _counted(len(runs), "chapter")
        recorded = self.recorded
        outputs, lead = f"{recorded.count(runs)} outputs as recorded, " if recorded.applies else "", ""
        if recorded.made_with and not recorded.applies:
            lead = "outputs and numbers in the text were NOT compared, because they were recorded with "
            lead += f"{recorded.made_with}, and this is {environment()}; "
        print(f"{lead}{chapters}, {held} of {len(facts)} claims and verdicts held, {outputs}{seconds:.1f} s; {last}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
