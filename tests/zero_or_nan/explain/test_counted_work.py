"""What `explain` does again at each node of a step that fails, and what it does once: counted, not timed."""

from collections import deque

import pytest
import torch
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain import backward, calls, sandbox
from zero_or_nan.explain.provenance import MOST_STEPS, Provenance, joined
from zero_or_nan.explain.tensors import any_of, is_finite, is_finite_at_each, not_finite


def counted(monkeypatch, owner, name):
    """The calls of a function from now on."""
    found, real = [], getattr(owner, name)

    def count(*args, **kwargs):
        found.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, count)
    return found


def with_a_bad_row(layers):
    model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(4, 4), nn.ReLU())))
    rows = torch.randn(6, 4)
    rows[2] = torch.nan
    with explain() as report:
        model(rows).square().mean().backward()
    assert [origin.kind for origin in report] == ["bad input"]


def test_the_text_of_a_multiplication_is_made_once_for_a_birth(monkeypatch):
    texts = counted(monkeypatch, backward, "multiplication")
    with_a_bad_row(6)
    assert len(texts) == 1


def test_a_call_does_not_run_again_if_positions_tell(monkeypatch):
    again = counted(monkeypatch, calls.Call, "result")
    x = torch.tensor([1.0, torch.nan]).requires_grad_()
    with explain() as report:
        for _ in range(5):
            x = x.sin()
        x.sum().backward()
    assert len(report.origins) == 1 and [args[0].name for args in again] == ["sum"]


@pytest.mark.parametrize("recomputes", [False, True])
def test_calls_are_watched_in_an_extra_pass_only_if_a_checkpoint_may_run(monkeypatch, recomputes):
    seen = counted(monkeypatch, sandbox._Undoing, "__torch_function__")
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with explain() as report:
        part = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False) if recomputes else x.sin()
        torch.where(x > 0, x.log(), part).sum().backward()
    assert [origin.operator for origin in report] == ["log"]
    assert bool(seen) == recomputes


def test_the_way_to_a_call_is_not_gone_from_each_node_anew(monkeypatch):
    looked = []

    class Waiting(deque):
        def popleft(self):
            looked.append(self[0])
            return super().popleft()

    monkeypatch.setattr(backward, "deque", Waiting)
    x = torch.tensor([1.0, torch.nan], requires_grad=True)
    for _ in range(20):
        x = x.sin()  # before the block: no node of these knows its call
    with explain() as report:
        x.sum().backward()
    assert len(report.origins) == 1 and 20 <= len(looked) <= 40


def test_a_provenance_that_nothing_changes_is_shared():
    from test_provenance import birth

    full = Provenance({birth(): ("sin",) * MOST_STEPS})
    assert joined([full], "cos") is full and joined([full, full]) is full
    one = Provenance({birth(): ("sin",)})
    assert joined([one], "sin") is one and joined([one], "cos") is not one


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)
@pytest.mark.parametrize("size", [1, 5, 5000])
def test_what_is_not_finite(dtype, size):
    parts = dtype.to_real()
    fine = torch.full((size,), torch.finfo(parts).max, dtype=parts).to(dtype)
    assert is_finite(fine) and is_finite_at_each(fine) and not any_of(not_finite(fine))
    for bad in (torch.nan, torch.inf, -torch.inf):
        here = fine.clone()
        here[-1] = bad
        assert torch.equal(not_finite(here), ~torch.isfinite(here))
        assert not is_finite(here) and any_of(not_finite(here))
