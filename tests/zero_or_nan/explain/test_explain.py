"""The tool finds what the corpus knows: every origin, in order of time, and no other.

Each program runs once. The tests read different parts of its report.
"""

import functools

import pytest
from corpus import PROGRAMS
from corpus.answers import advice, agrees, names_the_cause
from origins import report_of

WRONG_ORIGINS = {
    "a tensor's history is not kept element by element: an infinity that relu made 0 is reported beside others": """
        message_passing_that_begins_too_large""",
    "a sum that would overflow as well is reported as another origin": "contrastive_loss_with_a_low_temperature",
}
WRONG_CAUSES = {
    "an inner loop within one step has no course": "inner_loop_with_too_long_steps",
    "an optimizer that is written out in the user's code is not known to be one": "adam_inside_of_the_graph",
}
WRONG_REMEDIES = {
    "the dtype has the exact value, and no rewrite is known that gives it": "plan_of_transport_that_underflows",
    "the thread adds eps in front of a root; the rewrite chooses the slope 0 at 0": "adam_inside_of_the_graph",
    "nothing is said of the learning rate and of clipping, because no course is seen": "inner_loop_with_too_long_steps",
}
"""What stays wrong. The page on `explain` states each of these limits."""


def expecting(wrong, programs):
    """The programs; those that `explain` gets wrong are expected to fail, and say why."""
    why = {name: reason for reason, names in wrong.items() for name in names.split()}
    params = []
    for program in programs:
        reason = why.get(program.run.__name__) if program.is_report else None
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        params.append(pytest.param(program, id=program.name, marks=marks))
    return params


@functools.cache
def explained(program):
    report = report_of(lambda: program.run())
    return report


HERE = [program for program in PROGRAMS if program.runs_here]
REPORTS = [program for program in HERE if program.is_report]


@pytest.mark.parametrize("program", expecting(WRONG_CAUSES, REPORTS))
def test_the_cause_is_that_of_the_thread(program):
    report = explained(program)
    assert names_the_cause(program, advice(report)), report


@pytest.mark.parametrize("program", expecting(WRONG_REMEDIES, REPORTS))
def test_the_remedy_agrees_with_the_fix_of_the_thread(program):
    report = explained(program)
    assert agrees(program, advice(report)), report


@pytest.mark.parametrize("program", expecting(WRONG_ORIGINS, HERE))
def test_all_origins_and_no_other(program):
    report = explained(program)
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
            assert origin.fixed is not None
