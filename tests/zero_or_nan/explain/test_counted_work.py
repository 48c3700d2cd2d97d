"""Names are looked up late, masks are kept, and the work for a birth does not grow with the number of births."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain.births import call


@pytest.mark.parametrize("width, weight", [(2, 2e38), (1, 4.0)])
def test_a_product_that_overflows_too_is_an_origin_of_its_own(width, weight):
    x = torch.full((2, width), 1.0)
    x[0, 0] = torch.nan
    large = torch.full((1, width), weight, requires_grad=True)
    with explain() as report:
        nn.functional.linear(x, large).mul(1.0).sum().backward()
    assert [origin.operator for origin in report] == (["linear"] * 2 if width == 2 else ["linear"])


def test_names_are_looked_up_among_what_is_there_by_then():
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.full((1, 2), torch.nan, requires_grad=True)
    with explain() as report:
        model(x).sum().backward()
    held = [nn.ModuleDict({"inner": model})]
    del model
    (origin,) = pickle.loads(pickle.dumps(report)).origins
    assert held and origin.module == "inner.0" and origin.reached == ["the loss", "inner.0.weight"]
    assert "nan in x" in origin.operands and origin == report.origins[0]


def test_the_names_that_wrappers_give_are_no_part_of_a_name():
    """Of DistributedDataParallel, the compiler, and FSDP. No variable leads to the model."""
    held = [nn.Module()]
    for wrapper in ("module", "_orig_mod", "_fsdp_wrapped_module"):
        held[0].add_module(wrapper, nn.Sequential(nn.Linear(1, 1)))
        with explain() as report:
            getattr(held[0], wrapper)(torch.full((1, 1), torch.nan)).sum().backward()
        assert report.origins[0].reached == ["the loss", "0.weight"]


def test_the_work_for_a_birth_does_not_grow_with_their_number():
    def lines(births):
        """How many lines of the library run."""
        count, package = 0, str(Path(call.__file__).parent)

        def trace(frame, event, arg):
            nonlocal count
            count += event == "line"
            return trace if frame.f_code.co_filename.startswith(package) else None

        weight, loss = torch.zeros(2, requires_grad=True), torch.zeros(())
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with explain() as report:
                for _ in range(births):
                    loss = loss + (weight * 1.0).log().sum()
                loss.backward()
        finally:
            sys.settrace(before)
        assert [origin.times for origin in report] == [births]
        return count

    lines(5)
    few, many = lines(25), lines(100)
    assert many < 4.2 * few
