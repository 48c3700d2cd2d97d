"""The baselines say what the tools that they stand for say, and leave PyTorch as it was."""

import pytest
import torch
from corpus import PROGRAMS
from corpus.baselines import BASELINES, Told, versions

BY_NAME = {program.name: program for program in PROGRAMS}
LINE, BEFORE, NOTHING, SOMETHING = "the line of the origin", "the line before", "nothing", "something"
SAID = {
    "anomaly mode": {
        "atlas.root_at_zero": NOTHING,  # an infinity
        "cases.distance_of_equal_points": BEFORE,  # sqrt made inf, and the square made NaN of it
    },
    "forward hooks": {
        "training.batch_with_a_nan": LINE,
        "clean.softmax_layer_on_masked_scores": SOMETHING,  # they look at what goes in
        "threads.instance_norm_of_a_constant_graph": NOTHING,  # born in a derivative
    },
    "loss and parameters": {
        "cases.variance_of_one_sample": SOMETHING,  # a loss
        "clean.contamination_that_spreads_into_training": SOMETHING,  # parameters, after a step
        "cases.where_over_exp": NOTHING,  # a gradient alone
    },
    "DebugMode": {
        "atlas.root_at_zero": LINE,  # backward: the line that made the node
        "reports_training.root_mean_square_without_epsilon": LINE,  # in place
        "clean.softmax_layer_on_masked_scores": SOMETHING,  # a mask of infinity
        "atlas.double_where": NOTHING,
    },
    "DebugUnderflowOverflow": {
        "threads.feed_forward_in_half_precision": LINE,
        "threads.instance_norm_of_a_constant_graph": NOTHING,
    },
    "torchlens": {"cases.binary_cross_entropy_by_hand": LINE, "atlas.root_at_zero": LINE},
}


@pytest.mark.parametrize("tool", SAID)
def test_a_baseline_says_what_its_tool_says_and_leaves_nothing_behind(tool):
    if tool not in versions():
        pytest.skip("not installed")
    backward, hooks = torch.autograd.backward, dict(torch.nn.modules.module._global_forward_hooks)
    functions = torch.empty, torch.Tensor.add, torch.nn.functional.relu
    for name, said in SAID[tool].items():
        program, told = BY_NAME[name], BASELINES[tool](BY_NAME[name])
        if said in (NOTHING, SOMETHING):
            assert told.anything == (said == SOMETHING), name
        else:
            assert told == Told(True, program.lines[0] - (said == BEFORE)), name
    assert torch.autograd.backward is backward and not torch.is_anomaly_enabled()
    assert torch.nn.modules.module._global_forward_hooks == hooks
    assert functions == (torch.empty, torch.Tensor.add, torch.nn.functional.relu)
