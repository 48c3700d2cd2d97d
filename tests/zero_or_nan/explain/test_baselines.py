"""The baselines say what the tools that they stand for say."""

import pytest
import torch
from corpus import PROGRAMS
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

LINE, NOTHING, SOMETHING = "the line of the origin", "nothing", "something"
SAID = [
    (anomaly_mode, "cases.where_over_exp", LINE),
    (anomaly_mode, "atlas.root_at_zero", NOTHING),  # an infinity
    (anomaly_mode, "cases.distance_of_equal_points", "the line before"),  # sqrt made inf, and the square made NaN of it
    (forward_hooks, "training.batch_with_a_nan", LINE),
    (forward_hooks, "clean.softmax_layer_on_masked_scores", SOMETHING),  # they look at what goes in
    (forward_hooks, "threads.instance_norm_of_a_constant_graph", NOTHING),  # born in a derivative
    (loss_and_parameters, "cases.variance_of_one_sample", SOMETHING),  # a loss
    (loss_and_parameters, "clean.contamination_that_spreads_into_training", SOMETHING),  # parameters, after a step
    (loss_and_parameters, "cases.where_over_exp", NOTHING),  # a gradient alone
    (debug_mode, "cases.binary_cross_entropy_by_hand", LINE),  # forward
    (debug_mode, "atlas.root_at_zero", LINE),  # backward: the line that made the node
    (debug_mode, "reports_training.root_mean_square_without_epsilon", LINE),  # in place
    (debug_mode, "clean.softmax_layer_on_masked_scores", SOMETHING),  # a mask of infinity
    (debug_mode, "atlas.double_where", NOTHING),
    (debug_underflow_overflow, "threads.feed_forward_in_half_precision", LINE),
    (debug_underflow_overflow, "threads.instance_norm_of_a_constant_graph", NOTHING),
    (torchlens, "cases.binary_cross_entropy_by_hand", LINE),
    (torchlens, "atlas.root_at_zero", LINE),
]


@pytest.mark.parametrize(("tool", "name", "said"), SAID)
def test_a_baseline_says_what_its_tool_says(tool, name, said):
    if next(name for name, run in BASELINES.items() if run is tool) not in versions():
        pytest.skip("not installed")
    program, told = BY_NAME[name], tool(BY_NAME[name])
    if said in (NOTHING, SOMETHING):
        assert told.anything == (said == SOMETHING)
    else:
        assert told == Told(True, program.lines[0] - (said != LINE))


def test_versions_are_those_of_what_is_installed():
    found = versions()
    assert list(found) == [name for name in BASELINES if name in found] and "anomaly mode" in found
    assert torch.__version__.startswith(found["anomaly mode"].removeprefix("torch "))


@pytest.mark.parametrize("name", versions())
def test_nothing_stays_behind(name):
    backward, hooks = torch.autograd.backward, dict(torch.nn.modules.module._global_forward_hooks)
    functions = torch.empty, torch.Tensor.add, torch.nn.functional.relu
    for program in PROGRAMS[:: len(PROGRAMS) // 20]:
        if program.runs_here:
            BASELINES[name](program)
    assert torch.autograd.backward is backward and not torch.is_anomaly_enabled()
    assert torch.nn.modules.module._global_forward_hooks == hooks
    assert functions == (torch.empty, torch.Tensor.add, torch.nn.functional.relu)
