"""What `explain` does again at each node of a step that fails, and what it does once: counted, not timed."""

import gc
import pickle
import sys
import weakref
from collections import deque
from pathlib import Path

import pytest
import torch
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain.births import calls
from zero_or_nan.explain.births import nodes as node_births
from zero_or_nan.explain.births import nodes as originations
from zero_or_nan.explain.births.provenance import MOST_STEPS, Provenance, joined
from zero_or_nan.explain.program import tensors
from zero_or_nan.explain.program.tensors import any_of, is_finite, is_finite_at_each, not_finite
from zero_or_nan.explain.report import narration as names
from zero_or_nan.explain.watch import backward
from zero_or_nan.explain.watch import shadow as sandbox


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
    texts = counted(monkeypatch, node_births, "multiplication")
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

    monkeypatch.setattr(originations, "deque", Waiting)
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


def test_the_derivative_runs_again_only_where_a_birth_may_be_new(monkeypatch):
    again = counted(monkeypatch, backward, "only_passes_on")
    with_a_bad_row(6)
    assert len(again) <= 2


def test_a_product_that_cannot_overflow_is_not_multiplied_again(monkeypatch):
    again = counted(monkeypatch, calls.Call, "result")
    with_a_bad_row(6)
    assert "linear" not in {args[0].name for args in again}


@pytest.mark.parametrize("width, weight", [(2, 2e38), (1, 2e38), (1, 4.0)])
def test_a_product_that_overflows_too_is_an_origin_of_its_own(width, weight):
    x = torch.full((2, width), 1.0)
    x[0, 0] = torch.nan
    large = torch.full((1, width), weight, requires_grad=True)
    with explain() as report:
        nn.functional.linear(x, large).mul(1.0).sum().backward()
    assert [origin.operator for origin in report] == (["linear"] * 2 if width == 2 else ["linear"])


def test_a_tensor_is_looked_at_once(monkeypatch):
    masks = counted(monkeypatch, tensors, "not_finite")
    x = torch.tensor([1.0, torch.nan], requires_grad=True)
    with explain() as report:
        y = x * 1.0
        for _ in range(20):
            y = y.sin()
        y.sum().backward()
    assert len(report.origins) == 1 and len(masks) <= 2 * 20 + 8


def test_a_mask_that_is_kept_is_that_of_the_numbers_as_they_are():
    masks, x = tensors.BadElements(), torch.tensor([1.0, torch.nan, 1.0])
    first = masks.of(x)
    assert first.tolist() == [False, True, False] and masks.of(x) is first
    x[0] = torch.inf
    assert masks.of(x).tolist() == [True, True, False]
    assert masks.of(x[1:]).tolist() == [True, False] and masks.of(x[2:]) is None
    x.numpy()[:] = 0
    assert masks.of(x) is None
    masks.clear()
    assert not masks._kept and not masks._size


def test_few_masks_are_kept():
    masks = tensors.BadElements()
    small = [torch.full((2,), torch.nan) for _ in range(100)]
    assert all(masks.of(each) is not None for each in small)
    assert len(masks._kept) == tensors._MOST_KEPT and masks._size == 2 * len(masks._kept)
    large = [torch.full((200_000,), torch.nan) for _ in range(5)]
    assert all(masks.of(each) is not None for each in large)
    assert masks._size == 400_000 == sum(mask.numel() for *_, mask in masks._kept.values())


@pytest.mark.parametrize("hidden", [False, True])
def test_all_modules_are_looked_for_only_if_others_may_hold_those_that_are_found(monkeypatch, hidden):
    everywhere = counted(monkeypatch, names, "all_modules")
    walks = counted(monkeypatch, names.gc, "get_referrers")
    model = nn.Sequential(nn.Linear(2, 2))
    held = {"held": nn.ModuleDict({"inner": model})} if hidden else {}
    with explain() as report:
        model(torch.full((1, 2), torch.nan)).sum().backward()
    assert not report.ok and len(report) == 1 and not walks and not everywhere  # nobody has read a name
    assert "inner.0.weight" in str(report) if held else "inner" not in str(report) and "0.weight" in str(report)
    assert len(walks) == 1 + hidden and len(everywhere) == hidden


def test_a_name_that_is_looked_up_later_keeps_nothing_alive():
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.full((1, 2), torch.nan, requires_grad=True)
    held = {"held": nn.ModuleDict({"inner": model})}
    with explain() as report:
        model(x).sum().backward()
    kept = [weakref.ref(thing) for thing in (model, model[0], held["held"], x, model[0].weight)]
    del model, x, held
    gc.collect()
    assert not any(known() is not None for known in kept)
    assert report.origins[0].module == "0" and report.origins[0].reached == ["the loss", "0.weight"]


def test_names_are_looked_up_among_what_is_there_by_then():
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.full((1, 2), torch.nan, requires_grad=True)
    with explain() as report:
        model(x).sum().backward()
    held = [nn.ModuleDict({"inner": model})]
    del model
    (origin,) = pickle.loads(pickle.dumps(report)).origins
    assert held and origin.module == "inner.0" and origin.reached == ["the loss", "inner.0.weight"]
    assert "nan in x" in origin.operands
    assert origin == report.origins[0]


def test_a_plain_tensor_that_is_a_variable_is_found_without_a_walk(monkeypatch):
    walks = counted(monkeypatch, names.gc, "get_referrers")
    weight = torch.zeros(2, requires_grad=True)
    with explain() as report:
        weight.log().sum().backward()
    assert report.origins[0].reached == ["the loss", "weight"] and not walks


def test_a_parameter_that_no_variable_leads_to_is_found(monkeypatch):
    everywhere = counted(monkeypatch, names, "all_modules")
    held = [nn.Linear(1, 1)]
    with explain() as report:
        (held[0].weight * torch.nan).sum().backward()
    assert everywhere and report.origins[0].reached == ["the loss", "weight"]


def logarithm(loss, weight):
    return loss + (weight * 1.0).log().sum()


def logarithm_first(loss, weight):
    return (weight * 1.0).log().sum() + loss


def halved(loss, weight):
    return (loss + (weight * 1.0).log().sum()) * 0.5


def root(loss, weight):
    return loss + (weight * 1.0).sqrt().sum()


def root_at_a_tie(loss, weight):
    return loss + (weight * 1.0).sqrt().relu().sum()


@pytest.mark.parametrize(
    ("add", "records"),
    [
        *((add, True) for add in (logarithm, logarithm_first, halved, root, root_at_a_tie)),
        *((add, False) for add in (logarithm, logarithm_first, halved)),  # a root of 0 is finite
    ],
)
def test_the_work_for_a_birth_does_not_grow_with_their_number(add, records):
    def lines(births):
        """How many lines of the library run."""
        count, package = 0, str(Path(calls.__file__).parent)

        def inside(frame, event, arg):
            nonlocal count
            count += event == "line"
            return inside

        def trace(frame, event, arg):
            return inside if frame.f_code.co_filename.startswith(package) else None

        weight, loss = torch.zeros(2, requires_grad=records), torch.zeros(())
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with explain() as report:
                for _ in range(births):
                    loss = add(loss, weight)
                if records:
                    loss.backward()
        finally:
            sys.settrace(before)
        assert [origin.times for origin in report] == [births]
        return count

    lines(5)
    few, many = lines(50), lines(200)
    assert many < 4.2 * few
