"""The tool finds what the corpus knows: every origin, in order of time, and no other."""

import pytest
import torch
from corpus import PROGRAMS

from zero_or_nan import explain

HERE = [pytest.param(program, id=program.name) for program in PROGRAMS if program.runs_here]


@pytest.mark.parametrize("program", HERE)
def test_all_origins_and_no_other(program):
    with explain() as report:
        program.run()
    found = [(origin.kind, origin.phase, origin.operator, origin.line) for origin in report]
    expected = zip(program.expected, program.lines, strict=True)
    assert found == [(want.kind, want.phase, want.operator, line) for want, line in expected]
    assert report.ok == (not program.expected)
    for origin, want in zip(report, program.expected, strict=True):
        assert origin.filename == program.filename
        assert origin.source and origin.reached and origin.remedy and origin.chapter and origin.count
        assert want.module is None or origin.module == want.module
        assert want.entries is None or tuple(origin.entries[: len(want.entries)]) == want.entries
        assert want.operands is None or want.operands in origin.operands
        if want.kind == "contaminated":
            assert origin.mended is not None


def test_a_nan_that_the_code_writes_is_told_of_where_it_is_written():
    layer, batch = torch.nn.Linear(2, 1), torch.zeros(4, 2)
    with explain() as report:
        batch[2] = float("nan")
        layer(batch).mean().backward()
    (origin,) = report
    assert (origin.kind, origin.operator) == ("bad input", "setitem")
    assert origin.source == 'batch[2] = float("nan")'
