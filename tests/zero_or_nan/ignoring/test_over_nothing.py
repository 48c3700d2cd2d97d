"""Sums over nothing: what only goes into a result without elements is ignored.

A graph network, in which the nodes of one type have no edges, is such a program (pyg-team/pytorch_geometric#4826). The
reference is the same program without the part that is empty.
"""

from math import inf

import pytest
import torch
import torch.nn.functional as F

from zero_or_nan import ignoring

none = torch.zeros  # tensors without elements, below


NO = torch.zeros(3, dtype=torch.bool)
NOWHERE = torch.zeros(0, dtype=torch.int64)

# Each gets three elements, and uses none of them. The results have no elements.
EMPTY = {
    "the product of the report": lambda y: y.view(3, 1) * torch.ones(1, 0),
    "where": lambda y: torch.where(none(0, 3) > 0, y, 0.0),
    "addmm": lambda y: torch.addmm(y, none(0, 2), none(2, 3)),
    "layer_norm": lambda y: F.layer_norm(none(0, 3), (3,), y, y),
    "batch_norm": lambda y: F.batch_norm(none(0, 3), none(3), torch.ones(3), y, y),
    "grid_sample": lambda y: F.grid_sample(y.view(1, 1, 1, 3), none(1, 0, 1, 2), align_corners=False),
    "gru": lambda y: torch.gru(
        none(2, 0, 1), none(1, 0, 1), [y[:, None], y[:, None], y, y], True, 1, 0.0, False, False, False
    )[0],
}  # fmt: skip

# The results have elements, but none of those that go in.
INSIDE = {
    "mm": lambda y: torch.ones(2, 0) @ (y.view(1, 3) * none(0, 3)),
    "logsumexp": lambda y: y.expand(0, 3).logsumexp(0).exp(),
    "scatter_reduce": lambda y: torch.ones(3).scatter_reduce(0, NOWHERE, y[:0], "amax"),
    "index_put": lambda y: torch.ones(3).index_put((NO,), y[:1]),
    "added in place": lambda y: none(0, 3).add_(y).sum(),
    "cross_entropy": lambda y: F.cross_entropy(y.expand(0, 3), NOWHERE, reduction="sum"),
}
CASES = {**EMPTY, **{f"inside of {name}": case for name, case in INSIDE.items()}}


def roots():
    """Numbers whose roots have infinite slopes, and the roots."""
    x = torch.tensor([0.0, 0.0, 4.0], requires_grad=True)
    return x, x.sqrt()


@pytest.mark.parametrize("case", CASES)
def test_a_sum_over_nothing_is_ignored(case):
    """The gradient is as without the part that is empty. What is used elsewhere counts, and stays undefined."""
    x, y = roots()
    loss = CASES[case](y).sum() + 2 * x.sum()
    assert loss.isfinite()
    for recorded in (False, True):
        assert ignoring.grad(loss, x, retain_graph=True, create_graph=recorded)[0].tolist() == [2.0, 2.0, 2.0]
    x, y = roots()
    empty = CASES[case](y).sum()
    gradient = ignoring.grad(empty, x, ignored="masked", retain_graph=True)[0]
    assert not gradient.get_mask().any() and not gradient.get_data().any()
    assert ignoring.grad(empty + y[1:].sum(), x)[0].tolist() == [0.0, inf, 0.25]
