"""A contaminated backward does not call more operators on larger inputs."""

import pytest
import torch
from sample import sample

from tools.measure.functions import FUNCTIONS


@pytest.mark.parametrize("name", sample(FUNCTIONS, 2))
def test_a_rule_does_not_run_once_for_each_row_or_element(name):
    """The number of operators grows as plain PyTorch's, or as the logarithm of the size."""

    def operators(size, method):
        forward, backward = FUNCTIONS[name][size].methods(True)[method]
        loss = forward()
        with torch.autograd.profiler.profile(use_kineto=False) as profile:
            backward(loss)
        return len(profile.function_events)

    by_size = [operators(size, "ignoring") for size in (0, 1)]
    plain = [operators(size, "plain") for size in (0, 1)]
    assert by_size[1] / by_size[0] < 2 * plain[1] / plain[0], (by_size, plain)
