"""A short check of the whole operator database: the first samples of every operator, in a minute or two."""

from __future__ import annotations

import json

from ..measure.causes import ENDS
from ..measure.fixed import measure_all, operators
from ..project import Project, write

SAMPLES = 2
"""How many samples of each operator are measured. `make fixed` measures more, on the pinned version."""
COUNTS = ("samples", "contaminated", "fixed", "broken", "other_bits")


def fixed_sample(project: Project) -> int:
    """Measure, and write the sums over all operators to `_build/fixed.json`."""
    tallies = measure_all(operators(), SAMPLES)
    found = {count: sum(getattr(tally, count) for tally in tallies) for count in COUNTS}
    crashed = [tally.operator for tally in tallies if any(lost.failure.startswith(ENDS) for lost in tally.not_fixed)]
    content = {"operators": len(tallies), **found, "crashed": crashed}
    write(project.build / "fixed.json", json.dumps(content) + "\n")
    return 0
