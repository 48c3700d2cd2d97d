"""An error in a rule is an error of the test: users get a warning in its place."""

import pytest

from zero_or_nan import ignoring
from zero_or_nan.ignoring import meanings
from zero_or_nan.ignoring.masked_pass import Pass


@pytest.fixture(autouse=True)
def bugs_are_raised(monkeypatch):
    monkeypatch.setattr(Pass, "raises_bugs", True)


@pytest.fixture
def unmarked(monkeypatch):
    """What `ignoring.follow_compiled` sets is set back after the test. Releases in which it does not work skip it."""
    import torch._functorch.config
    import torch._inductor.config

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("PyTorch 2.6 can't put marks into its cache, and 2.7 drops the backward graph from it")
    monkeypatch.setattr(meanings, "_is_followed", False)
    passes = dict.fromkeys(("joint_custom_pre_pass", "joint_custom_post_pass"))
    with torch._inductor.config.patch(passes), torch._functorch.config.patch(donated_buffer=True):
        yield


@pytest.fixture
def marked(unmarked):
    """Inductor marks what it compiles, for one test."""
    ignoring.follow_compiled()
