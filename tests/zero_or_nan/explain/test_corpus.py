"""The corpus is right, by checks that know nothing of the tool: each expectation is tested against what can be seen."""

import inspect
import linecache
import re
from collections import Counter
from math import isclose

import pytest
import torch
from corpus import PROGRAMS, Expected, Program
from corpus.program import marked
from observing import Event, Seen, ends_finite, ends_finite_in_float64, observe

HERE = [pytest.param(program, id=program.name) for program in PROGRAMS if program.runs_here]
WRONG = [param for param in HERE if param.values[0].expected]

BY_ROUNDING = {
    "clean under float64, for the value that has no logarithm or inverse is 0 by underflow": """
        textbook.cross_entropy_by_hand textbook.overlap_of_empty_masks textbook.likelihood_as_a_product
        mechanics.weights_without_a_gradient mechanics.forward_alone threads.adam_in_half_precision
        threads.normalize_in_half_precision reports_training.adam_whose_second_moment_is_zero
        reports_training.pointer_network_under_a_fused_optimizer reports_formulas.principal_point_in_half_precision
        reports_formulas.plan_of_transport_that_underflows reports_formulas.gumbel_noise_in_half_precision
        reports_formulas.component_that_is_never_chosen""",
    "clean under float64, for a sigmoid or tanh was rounded to 1": """
        textbook.binary_cross_entropy_by_hand textbook.squashed_action_at_its_bound
        reports_formulas.divergence_of_sure_bernoullis""",
}
ROUNDED = {name for names in BY_ROUNDING.values() for name in names.split()}


def test_there_are_enough():
    assert len([program for program in PROGRAMS if program.expected]) >= 70
    assert len([program for program in PROGRAMS if not program.expected]) >= 20
    assert max(Counter(program.name for program in PROGRAMS).values()) == 1


@pytest.mark.parametrize("kind", ["contaminated", "undefined", "overflow", "bad input"])
def test_every_kind_is_there(kind):
    assert sum(expected.kind == kind for program in PROGRAMS for expected in program.expected) >= 8


@pytest.mark.parametrize("program", HERE)
def test_the_form(program):
    """A sentence on what is wrong; a line for each origin, which the source marks."""
    assert (program.run.__doc__ or "").rstrip().endswith("."), "a program says what is wrong"
    assert len(program.lines) == len(program.expected)
    assert all("# born" in linecache.getline(program.filename, line) for line in program.lines)


@pytest.mark.parametrize("program", [param for param in HERE if param.values[0].is_report])
def test_a_report_says_where_it_comes_from(program):
    """The repository and the number, when it was read; and of what goes wrong a fix, which is no fix that fails."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", program.thread)
    assert "\n\n    Read on 2026-11-23. " in program.run.__doc__
    assert bool(program.remedy) == bool(program.expected)
    assert not program.fails or not re.search(program.remedy, program.fails)


@pytest.mark.parametrize("program", HERE)
def test_what_is_seen(program, capsys):
    seen = observe(program)
    assert seen.finite == (not program.expected)
    for expected, line in zip(program.expected, program.lines, strict=True):
        if expected.behind:  # covered by the NaN of another; that it is there, `ignoring` shows below
            continue
        is_born(seen, expected, line)
        if len(program.expected) == 1:
            is_first(seen, expected, line, harmless(program))
    times = [seen.forward.index(at(seen, expected, line)[0]) for expected, line in forward(program)]
    assert times == sorted(times)
    printed = capsys.readouterr()
    assert not printed.out and not printed.err


def forward(program: Program) -> list[tuple[Expected, int]]:
    both = zip(program.expected, program.lines, strict=True)
    return [(expected, line) for expected, line in both if expected.phase == "forward"]


def is_born(seen: Seen, expected: Expected, line: int) -> None:
    """At that line, by that function, in that module; and what went in was finite, or was not, as the kind says."""
    own = expected.operator[0].isupper()
    events = at(seen, expected, line)
    assert events
    if not own:
        assert expected.operator in seen.names[line]
    if expected.module is not None:
        assert expected.module in seen.modules[line]
    if expected.entries is not None:
        assert events[0].entries == set(expected.entries)
    if expected.operands is not None:
        number = float(expected.operands)
        assert any(isclose(number, seen, rel_tol=0.01) or str(number) == str(seen) for seen in seen.numbers[line])
    made = any(event.how == "made" for event in events)
    if expected.kind == "bad input":
        assert not made
    if expected.kind == "overflow":
        assert made
    if expected.kind == "undefined":  # log of a sum of nothing is −inf as its operands are, and has the slope 0 / 0
        slope = any(event.how == "made" and event.lines[0] == line for event in seen.backward)
        assert made or (events[0].how == "took inf" and slope)


def is_first(seen: Seen, expected: Expected, line: int, harmless: set[int]) -> None:
    """Nothing was wrong before, but infinities that the program wrote, and what it says to be harmless."""
    before = [event for event in seen.forward if not harmless & set(event.lines[:1])]
    assert len(before) < len(seen.forward) or not harmless
    if expected.phase == "backward":
        assert all(event.how == "took inf" for event in before)
    events = at(seen, expected, line)
    if not expected.operator[0].isupper():  # a function of one's own has events of its own
        every = before if expected.phase == "forward" else seen.backward
        assert next(event for event in every if event.how != "took inf" or event in events) in events


def harmless(program: Program) -> set[int]:
    first = program.run.__code__.co_firstlineno
    return {first + at for at, line in enumerate(source(program)) if line.endswith("# harmless\n")}


def at(seen: Seen, expected: Expected, line: int) -> list[Event]:
    own = expected.operator[0].isupper()
    events = seen.forward if expected.phase == "forward" else seen.backward
    return [event for event in events if (line in event.lines if own else event.lines[:1] == (line,))]


@pytest.mark.parametrize("program", WRONG)
def test_contaminated_is_what_ignoring_fixes(program):
    kinds = {expected.kind for expected in program.expected}
    assert ends_finite(program, by_ignoring=True) == (kinds == {"contaminated"})


@pytest.mark.parametrize("program", [param for param in HERE if not param.values[0].expected])
def test_a_clean_program_is_clean_by_ignoring(program):
    assert ends_finite(program, by_ignoring=True)


@pytest.mark.parametrize("program", WRONG)
def test_a_wider_dtype_fixes_what_overflows_alone(program):
    """0 / 0 is NaN in float64 too, but where the 0 itself was rounded in float32."""
    kinds = {expected.kind for expected in program.expected}
    assert kinds == {"undefined"} or program.name not in ROUNDED
    if kinds == {"overflow"} or program.name in ROUNDED:
        assert ends_finite_in_float64(program)
    elif kinds & {"undefined", "bad input"}:
        assert not ends_finite_in_float64(program)


@pytest.mark.parametrize("program", HERE)
def test_the_same_each_time(program):
    """A program that draws random numbers seeds them, and leaves nothing behind."""
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_anomaly_enabled()
    states = []
    for seed in (5, 6):
        states += [torch.manual_seed(seed).get_state(), *(torch.random.get_rng_state() for _ in [program.run()])]
    untouched = torch.equal(states[0], states[1]) and torch.equal(states[2], states[3])
    assert untouched or torch.equal(states[1], states[3]), "it draws random numbers and does not seed"
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_anomaly_enabled())


def source(program: Program) -> list[str]:
    """A program's lines, from its decorator on."""
    lines, _ = inspect.getsourcelines(program.run)
    return lines


def test_nothing_of_the_observer_stays():
    program = next(program for program in PROGRAMS if program.name == "modules.norm_without_eps")
    backward = torch.autograd.backward
    assert observe(program).finite is False
    assert torch.autograd.backward is backward and not torch.is_anomaly_enabled()
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_marks_are_counted():
    def unmarked():
        pass

    def twice():
        pass  # born
        pass  # born

    assert marked(unmarked, 0) == ()
    for run, count in ((unmarked, 1), (twice, 1), (twice, 2)):
        with pytest.raises(ValueError, match="origins"):
            marked(run, count)
