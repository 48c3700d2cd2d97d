"""The baselines say what the tools that they stand for say."""

import pytest
import torch
from corpus import PROGRAMS, Program
from corpus.baselines import (
    BASELINES,
    Told,
    anomaly_mode,
    debug_mode,
    debug_underflow_overflow,
    forward_hooks,
    loss_and_parameters,
    torchlens,
    versions,
)

BY_NAME = {program.name: program for program in PROGRAMS}


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in versions(), reason=f"{name} is not installed")


def line_of(name: str) -> tuple[Program, int]:
    return BY_NAME[name], BY_NAME[name].lines[0]


@pytest.mark.parametrize("name", ["cases.root_at_zero_under_where", "cases.where_over_exp", "cases.rows_sliced_away"])
def test_anomaly_mode_names_a_line_where_a_derivative_is_the_first_to_be_nan(name):
    program, line = line_of(name)
    assert anomaly_mode(program) == Told(True, line)


def test_anomaly_mode_says_nothing_of_infinity():
    assert anomaly_mode(BY_NAME["cases.root_at_zero"]) == Told(False)


def test_anomaly_mode_names_what_nan_went_through():
    program, line = line_of("cases.distance_of_equal_points")
    told = anomaly_mode(program)
    assert told.anything and told.line == line - 1  # sqrt made inf, and the square made NaN of it


def test_forward_hooks_name_the_innermost_module_first():
    program, line = line_of("training.batch_with_a_nan")
    assert forward_hooks(program) == Told(True, line)


def test_forward_hooks_look_at_what_goes_in():
    assert forward_hooks(BY_NAME["clean.softmax_layer_on_masked_scores"]).anything


def test_forward_hooks_see_no_derivative():
    assert forward_hooks(BY_NAME["threads.instance_norm_of_a_constant_graph"]) == Told(False)


@pytest.mark.parametrize(
    ("name", "anything"),
    [
        ("textbook.variance_of_one_sample", True),  # a loss
        ("beside.contamination_that_spreads_into_training", True),  # parameters, after a step
        ("cases.where_over_exp", False),  # a gradient alone
    ],
)
def test_loss_and_parameters(name, anything):
    assert loss_and_parameters(BY_NAME[name]) == Told(anything)


@installed("DebugMode")
@pytest.mark.parametrize(
    "name",
    [
        "textbook.binary_cross_entropy_by_hand",  # forward
        "cases.root_at_zero",  # backward: the line that made the node
        "reports_training.root_mean_square_without_epsilon",  # in place
    ],
)
def test_debug_mode_names_the_first_operator_with_a_bad_result(name):
    program, line = line_of(name)
    assert debug_mode(program) == Told(True, line)


@installed("DebugMode")
def test_debug_mode_takes_a_mask_of_infinity_for_a_mistake():
    assert debug_mode(BY_NAME["clean.softmax_layer_on_masked_scores"]).anything


@installed("DebugMode")
def test_debug_mode_says_nothing_of_finite_numbers():
    assert debug_mode(BY_NAME["clean.double_where"]) == Told(False)


@installed("DebugUnderflowOverflow")
def test_the_tool_of_transformers_sees_what_its_imitation_sees():
    for name in ("training.batch_with_a_nan", "threads.feed_forward_in_half_precision"):
        program, line = line_of(name)
        assert debug_underflow_overflow(program) == forward_hooks(program) == Told(True, line)
    assert debug_underflow_overflow(BY_NAME["threads.instance_norm_of_a_constant_graph"]) == Told(False)


@installed("torchlens")
@pytest.mark.parametrize("name", ["textbook.binary_cross_entropy_by_hand", "cases.root_at_zero"])
def test_torchlens_names_a_birth_in_forward_and_in_backward(name):
    program, line = line_of(name)
    assert torchlens(program) == Told(True, line)


def test_versions_are_those_of_what_is_installed():
    found = versions()
    assert list(found) == [name for name in BASELINES if name in found] and "anomaly mode" in found
    assert torch.__version__.startswith(found["anomaly mode"].removeprefix("torch "))


@pytest.mark.parametrize("name", [pytest.param(name, marks=installed(name)) for name in BASELINES])
def test_nothing_stays_behind(name):
    backward, hooks = torch.autograd.backward, dict(torch.nn.modules.module._global_forward_hooks)
    functions = torch.empty, torch.Tensor.add, torch.nn.functional.relu
    for program in PROGRAMS[:: len(PROGRAMS) // 20]:
        if program.runs_here:
            BASELINES[name](program)
    assert torch.autograd.backward is backward and not torch.is_anomaly_enabled()
    assert torch.nn.modules.module._global_forward_hooks == hooks
    assert functions == (torch.empty, torch.Tensor.add, torch.nn.functional.relu)
