"""A quick look at the whole operator database: the first samples of every operator, in a minute or two."""

from __future__ import annotations

import json

from ..measure.causes import ENDS
from ..measure.mended import measure_all, operators
from ..project import Project, write

SAMPLES = 2
"""Samples of each operator that are looked at; `make mended` looks at more, on the pinned version."""
COUNTS = ("samples", "contaminated", "mended", "broken", "other_bits")


def mended_sample(project: Project) -> int:
    """Measure, and write the sums over all operators to `_build/mended.json`."""
    tallies = measure_all(operators(), SAMPLES)
    found = {count: sum(getattr(tally, count) for tally in tallies) for count in COUNTS}
    crashed = [tally.operator for tally in tallies if any(lost.failure.startswith(ENDS) for lost in tally.unmended)]
    content = {"operators": len(tallies), **found, "crashed": crashed}
    write(project.build / "mended.json", json.dumps(content) + "\n")
    return 0
