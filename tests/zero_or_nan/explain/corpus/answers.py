"""What a report advises, beside what the public thread of a program found."""

import re
from typing import Any

from .program import CAUSES, Program

FACTS = re.compile(r"(contaminated|undefined|overflow|bad input): |\s*(born in|reached|https:)|.*\.py:\d+$")
"""Lines of a report that say what happened and where."""


def advice(report: Any) -> str:
    """The text of a report without what it quotes: the source, the numbers, the names, and the addresses of pages."""
    text = str(report)
    for origin in report:
        text = text.replace(origin.source, "") if origin.source else text
    return "\n".join(line for line in text.splitlines() if not FACTS.match(line))


def names_the_cause(program: Program, text: str) -> bool:
    """Whether advice names the cause that the thread found, if it has to, and names divergence for no other."""
    named = not program.has_cause_to_name or bool(re.search(CAUSES[program.cause or ""], text, re.IGNORECASE))
    return named and (program.cause == "divergence" or not re.search(CAUSES["divergence"], text, re.IGNORECASE))


def agrees(program: Program, text: str) -> bool:
    """Whether advice has the fix of the thread, and no fix that was tried and fails."""
    found = not program.remedy or re.search(program.remedy, text, re.IGNORECASE)
    return bool(found) and not (program.fails and re.search(program.fails, text, re.IGNORECASE))
