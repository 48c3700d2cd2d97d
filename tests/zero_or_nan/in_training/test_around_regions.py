"""A compiled region beside the same code uncompiled: the gradients, the buffers, the masks and the counts."""

import warnings
from functools import partial

import pytest
import torch
from comparing import BAD, FINITE, is_finite, loss_of, network
from torch import nn

from zero_or_nan import ignoring

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serial"),  # of inductor itself
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # Dynamo looks at it
]


compiled = partial(torch.compile, backend="aot_eager")


def uncompiled(function):
    return function


def test_a_norm_over_bad_rows_stays_nan():
    """In training mode its statistics mix the rows. The buffers are written once, as in uncompiled code."""

    def found(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        ignoring.backward(loss_of(compile(model), BAD))
        return [*(p.grad for p in model.parameters()), *model.buffers()]

    assert not is_finite(found(compiled))
    torch.testing.assert_close(found(compiled), found(uncompiled), equal_nan=True)


@pytest.mark.parametrize("rows", [BAD, FINITE], ids=["bad", "finite"])
def test_masks_and_counts_are_those_of_uncompiled_code(rows):
    def found(compile):
        torch._dynamo.reset()
        model, x = network(), rows.clone().requires_grad_()
        loss = compile(loss_of)(model, x)
        with warnings.catch_warnings(), ignoring.counting() as counted:
            warnings.filterwarnings("error", message="ignoring")
            masked = ignoring.grad(loss, [x, *model.parameters()], ignored="masked")
        counts = [counted.passes, counted.kept_clean, counted.rows, counted.of_rows]
        return counts, [one.get_mask() for one in masked], [one.get_data() for one in masked]

    (counts, *ours), (expected, *theirs) = found(compiled), found(uncompiled)
    assert counts == expected == ([1, 1, 2, 9] if rows is BAD else [1, 0, 0, 0])
    torch.testing.assert_close(ours, theirs)
