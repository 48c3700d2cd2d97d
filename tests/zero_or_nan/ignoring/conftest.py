"""The ways in which a pass goes through a graph; what a test registers or marks."""

import warnings

import pytest
import torch._inductor.config

from zero_or_nan import ignoring
from zero_or_nan.ignoring.engine import passes, plan


def not_harmless(nodes, unsafe=None):
    """A look by which a graph is not harmless, though each of its nodes is."""
    if unsafe is not None:
        unsafe.append("another node")
    return False


@pytest.fixture(params=["quick look", "careful", "by rules alone", "masks alone"])
def each_way(request, monkeypatch):
    """With the quick look, with it switched off, and with only one way to follow a node."""
    if request.param in ("careful", "by rules alone"):
        monkeypatch.setattr(passes, "is_safe", lambda *_: False)
    if request.param == "by rules alone":
        monkeypatch.setattr(plan, "USES_TRANSFERS", False)
    if request.param == "masks alone":
        monkeypatch.setattr(passes, "is_safe", not_harmless)
        monkeypatch.setattr(plan, "SKIPS", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="ignoring")
        yield


@pytest.fixture
def registries_as_before():
    """What a test registers is forgotten after it."""
    functions, rules = dict(ignoring.FUNCTIONS), dict(ignoring.RULES)
    yield
    for registry, before in ((ignoring.FUNCTIONS, functions), (ignoring.RULES, rules)):
        registry.clear()
        registry.update(before)


@pytest.fixture
def marked(marked):
    """Inductor marks what it compiles, and draws the random numbers that uncompiled code draws."""
    with torch._inductor.config.patch(fallback_random=True):
        yield
