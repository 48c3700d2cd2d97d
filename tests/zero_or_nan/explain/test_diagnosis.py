"""A diagnosis needs events and a shadow alone: here both are written down, and no graph exists."""

from dataclasses import dataclass, field

import pytest
import torch

from zero_or_nan.explain.births.diagnosis import Born, Diagnosis, Events, Reached, Verdict, diagnose, diagnose_results
from zero_or_nan.explain.births.provenance import Birth, Provenance
from zero_or_nan.explain.program.code import place_here
from zero_or_nan.explain.report.narration import NOT_TOLD_APART, Names, Narration
from zero_or_nan.explain.report.report import Report

FIRST, BOTH = torch.tensor([True, False]), torch.tensor([True, True])
LEAF = torch.zeros(2)


@dataclass
class Shadow:
    """The outcome of a pass of `ignoring`, written down."""

    masks: dict = field(default_factory=dict)
    finite: dict = field(default_factory=dict)
    is_fixed: bool = False

    def fixed(self, target, edge):
        return self.is_fixed


def birth(phase="forward", nature="made", **more):
    float32, cpu = torch.float32, torch.device("cpu")
    return Birth(nature, phase, "log", place_here(), [(0,)], 1, (2,), float32, cpu, "log(0) = -inf", **more)


def reached(*births, edge=("leaf", 0), target=LEAF, path=("log",)):
    return Reached(target, edge, Provenance(dict.fromkeys(births, path)))


def in_loss(*births):
    return reached(*births, edge=None, target="the loss")


def verdict(events, shadow=None):
    (diagnosis,) = diagnose(events, shadow, {})
    return diagnosis.verdict


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "undefined"),
        ({"too_large": True}, "overflow"),
        ({"nature": "given"}, "bad input"),
        ({"nature": "meant"}, "bad input"),
        ({"held": True}, "bad input"),
    ],
)
def test_without_a_shadow_the_loss_uses_the_elements(more, kind):
    assert verdict(Events(reached=[reached(birth(**more))])) == Verdict(kind, None, is_sure=True)


def test_a_shadow_that_could_not_be_cast_leaves_a_doubt_but_not_about_what_was_in_grad_before():
    events = Events(reached=[reached(birth())], lacks_shadow=True)
    assert verdict(events) == Verdict("undefined", None, is_sure=False)
    assert verdict(Events(reached=[reached(birth(held=True))], lacks_shadow=True)).is_sure


@pytest.mark.parametrize(
    ("mask", "kind"), [(torch.tensor([False, True]), "contaminated"), (FIRST, "undefined"), (None, "undefined")]
)
def test_a_birth_in_forward_is_contaminated_if_no_element_of_it_counts(mask, kind):
    bad = birth()
    events = Events(carried={"log": {0: [(bad, FIRST)]}}, reached=[reached(bad)])
    assert verdict(events, Shadow({("log", 0): mask})) == Verdict(kind, False)


def test_no_cotangent_at_an_edge_means_that_the_loss_ignores_it_but_a_root_is_the_loss():
    bad = birth()
    events = Events(carried={"log": {0: [(bad, FIRST)]}}, reached=[reached(bad)])
    assert verdict(events, Shadow()).kind == "contaminated"
    events.roots = {("log", 0)}
    assert verdict(events, Shadow()).kind == "undefined"


def test_finite_gradients_mean_that_the_loss_ignores_it_unless_the_loss_has_it():
    bad = birth()
    shadow = Shadow({("log", 0): FIRST}, is_fixed=True)
    carried = {"log": {0: [(bad, FIRST)]}}
    assert verdict(Events(carried=carried, reached=[reached(bad)]), shadow) == Verdict("contaminated", True)
    events = Events(carried=carried, reached=[in_loss(bad), reached(bad)])
    assert verdict(events, shadow) == Verdict("undefined", True)
    assert verdict(Events(carried=carried, reached=[in_loss(bad)]), shadow) == Verdict("undefined", None)


@pytest.mark.parametrize(
    ("finite", "kind"), [({"sqrt": True}, "contaminated"), ({"sqrt": False}, "undefined"), ({}, "undefined")]
)
def test_a_birth_in_backward_is_contaminated_if_ignoring_passes_on_finite_numbers_there(finite, kind):
    bad = birth("backward")
    events = Events(born={"sqrt": Born(bad, FIRST, is_opaque=False)}, reached=[reached(bad)])
    assert verdict(events, Shadow(finite=finite)).kind == kind


def test_at_an_opaque_node_the_mask_of_what_arrives_decides():
    bad = birth("backward")
    events = Events(born={"Mine": Born(bad, FIRST, is_opaque=True)}, reached=[reached(bad)])
    assert verdict(events, Shadow({("Mine", 0): ~FIRST}, {"Mine": False})).kind == "contaminated"
    assert verdict(events, Shadow({("Mine", 0): BOTH}, {"Mine": True})).kind == "undefined"


def test_a_hook_does_not_run_in_a_shadow_so_the_loss_uses_what_a_hook_made():
    assert verdict(Events(reached=[reached(birth("backward"))]), Shadow(is_fixed=True)) == Verdict("undefined", True)


def test_births_come_in_order_of_time_each_by_its_longest_path_and_with_all_that_it_reached():
    one, other = birth(), birth()
    events = Events(reached=[in_loss(other, one), reached(one, path=("log", "sum"))])
    first, second = diagnose(events, None, {})
    assert first == Diagnosis(one, Verdict("undefined"), ["the loss", LEAF], ("log", "sum"))
    assert second == Diagnosis(other, Verdict("undefined"), ["the loss"], ("log",))


def test_a_verdict_holds_in_later_passes():
    bad = birth()
    (diagnosis,) = diagnose(Events(reached=[reached(bad)]), None, {bad: Verdict("contaminated", True)})
    assert diagnosis.verdict == Verdict("contaminated", True)


def test_the_gradient_of_a_loss_that_is_too_large_is_implied():
    bad, large = birth(too_large=True), birth("backward", too_large=True)
    events = Events(born={"exp": Born(large, FIRST, False)}, reached=[in_loss(bad), reached(large)])
    assert [diagnosis.is_implied for diagnosis in diagnose(events, None, {})] == [False, True]
    del events.reached[0]
    assert [diagnosis.is_implied for diagnosis in diagnose(events, None, {})] == [False]


def test_without_a_pass_results_are_reached_but_not_by_an_infinity_that_the_code_wrote_down():
    bad, meant = birth(), birth(nature="meant")
    found = diagnose_results([Provenance({meant: ("full",), bad: ("log",)}), Provenance({bad: ("log", "sum")})])
    assert found == [Diagnosis(bad, Verdict("undefined"), ["a result"], ("log",))]


def test_a_report_has_one_origin_for_each_line_and_says_what_is_in_doubt():
    report = Report()
    narration = Narration(report, {})
    one, again = (birth() for _ in range(2))
    unsure = Diagnosis(one, Verdict("undefined", is_sure=False), ["the loss"], ("log",))
    narration.add([unsure, unsure._replace(birth=again, targets=["a result"])], Names())
    narration.add([unsure._replace(birth=birth("backward"), is_implied=True)], Names())
    (origin,) = report
    assert (origin.times, origin.reached, origin.path) == (2, ["the loss", "a result"], ["log"])
    assert not origin.is_sure and report.notes == [NOT_TOLD_APART]
    assert set(narration.verdicts) == {one, again}
