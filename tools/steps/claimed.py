"""The claims and verdicts of every page, compared with those that are recorded for this release of PyTorch.

A claim that holds can still be a fault, if a reader no longer sees what it said: it was deleted, is never reached, is
stated twice, expects something else, or has a wider tolerance. If the change was on purpose, `make record` records it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from ..project import Project, read_record
from .collect import ChapterRun, checked, statements
from .outputs import alike, environment
from .record import identity, named, outcome, written

_STATED = ("expected", "tolerance", "history")
"""What a claim or a verdict states, in addition to its place. What was observed may differ within the tolerance."""


class Claimed:
    """The recorded claims and verdicts of this release and device. Without a record of these, nothing is compared.

    Raises:
        Problem: if the record can't be read.
    """

    def __init__(self, project: Project | None = None) -> None:
        content = read_record(project.claims) if project and project.claims.is_file() else {"runs": {}, "outcomes": []}
        here = "{torch} {device}".format_map(environment())
        self.applies = here in content["runs"]
        self._pages: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for each in content["outcomes"]:
            if here in each.get("on", [here]):
                self._pages[each["page"]].append(each)

    def differences(self, run: ChapterRun) -> list[str]:
        """One text for each claim or verdict that is gone, new, stated twice, or stated in another way.

        The list is empty if nothing is recorded for this release, and after a cell failed, because later claims are
        then missing.
        """
        if not self.applies or run.troubles:
            return []
        facts = checked(statements(run.notebook, run.chapter.stem))
        before = {identity(each): each for each in self._pages[run.chapter.stem]}
        now = {identity(fact): written(outcome(fact)) for fact in facts}
        return [
            *(f"the page no longer states {named(gone)}" for gone in before if gone not in now),
            *(f"the page states what is not in the record: {named(new)}" for new in now if new not in before),
            *(
                f"the page states more than once: {named(at)}"
                for at, count in Counter(map(identity, facts)).items()
                if count > 1
            ),
            *(
                f"{named(at)} has another {key}: recorded {_text(before[at], key)}, now {_text(now[at], key)}"
                for at in now
                if at in before
                for key in _STATED
                if not alike(_text(before[at], key), _text(now[at], key))
            ),
        ]


def _text(stated: dict[str, Any], key: str) -> str:
    return json.dumps(stated.get(key, "none"), sort_keys=True, ensure_ascii=False)
