"""What a report says, in short, and what a step raises when it fails."""

from operator import attrgetter

import pytest
import torch
from scratch import ROOT

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError


def report_of(program):
    """The report on a function without arguments."""
    with explain() as report:
        program()
    return report


def failure(step, *args, **kwargs):
    """The report that a step raises."""
    with pytest.raises(NotFiniteError) as caught:
        step(*args, **kwargs)
    return caught.value.report


def telling(*fields):
    """A function that gives these fields of each origin of a report."""
    return lambda report: list(map(attrgetter(*fields), report))


told = telling("kind", "phase", "operator")


def program_with(text):
    """The program with this text on the page about `explain`."""
    page = (ROOT / "chapters" / "find-it-in-your-model.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")]
    (program,) = (block for block in blocks if text in block)
    assert max(map(len, program.splitlines())) <= 78
    return program


def same(one, other):
    """Whether tensors, and what holds them, are equal. A NaN is equal to a NaN."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def grads_of(model):
    """A copy of the gradients of a model, or None."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]
