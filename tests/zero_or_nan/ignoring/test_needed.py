"""A pass for some inputs looks at the nodes that PyTorch's engine runs for them, and at no others."""

import random

import pytest
import torch
from tensors import leaf
from torch.autograd.graph import get_gradient_edge

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import graph_from
from zero_or_nan.ignoring.engine.attach import needed_from


def chain(length, *values):
    """The sum of the losses of all steps of a chain, and the steps."""
    steps = [leaf(*values)]
    for _ in range(length):
        steps.append(steps[-1] * 1.01)
    return sum(torch.where(step > 0, step, 0.0).sum() for step in steps), steps


def test_the_nodes_are_those_that_the_engine_runs_and_no_hook_runs_to_find_them():
    for seed in range(40):
        draw, ran = random.Random(seed), set()
        tensors = [leaf(1.0), leaf(2.0)]
        for _ in range(12):
            tensors.append(draw.choice(tensors) * draw.choice(tensors))
        roots, inputs = [draw.choice(tensors[2:]) for _ in range(2)], draw.sample(tensors, 2)
        for root in roots:
            root.register_hook(lambda _, ran=ran: ran.add("a root"))
        for node in graph_from(roots):
            node.register_prehook(lambda _, ran=ran, node=node: ran.add(node))
        needed = needed_from(roots, inputs)
        assert not ran
        torch.autograd.grad(roots, inputs, allow_unused=True)
        captured = {tensor.grad_fn for tensor in inputs} | {node for node in needed if not node.next_functions}
        assert ran - {"a root"} <= set(needed) <= ran | captured


@pytest.mark.filterwarnings("ignore:Anomaly")
def test_where_the_engine_cannot_be_asked_all_nodes_are_taken():
    loss, steps = chain(20, 1.0, 2.0)
    for root, inputs in ((get_gradient_edge(loss), steps[-1:]), (loss, []), (loss, [None])):
        assert needed_from([root], inputs) == graph_from([loss])
    with torch.autograd.detect_anomaly(check_nan=False):
        assert needed_from([loss], steps[-1:]) == graph_from([loss])
    assert needed_from([loss], [leaf(1.0)]) == {}
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert len(needed_from([loss], steps[-1:])) < 20


def test_a_selection_that_no_gradient_was_asked_for_still_selects_in_the_second_pass():
    x, factor = leaf(1.0, -1.0, 4.0), leaf(1.0, 1.0, 1.0)
    loss = torch.where(x < 2, factor * torch.where(x > 0, x.sqrt(), 0.0), 0.0).sum()
    (slope,) = ignoring.grad(loss, [factor], create_graph=True)
    assert ignoring.grad(slope.sum(), [x])[0].tolist() == [0.5, 0.0, 0.0]
