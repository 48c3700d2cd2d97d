"""An error in a rule is an error of the test: users get a warning in its place. Also what compiled code needs."""

import warnings

import pytest
import torch

from zero_or_nan import ignoring
from zero_or_nan.ignoring.engine.masked_pass import Pass


@pytest.fixture(autouse=True)
def bugs_are_raised(monkeypatch):
    monkeypatch.setattr(Pass, "raises_bugs", True)


@pytest.fixture
def unmarked(monkeypatch):
    """What `ignoring.follow_compiled` sets is set back after the test. Releases in which it does not work skip it."""
    from torch._functorch import config as functorch
    from torch._inductor import config

    from zero_or_nan.ignoring.extras.compiled import meanings  # here, because an extra may be missing

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("PyTorch 2.6 can't put marks into its cache, and 2.7 drops the backward graph from it")
    monkeypatch.setattr(meanings, "_is_followed", False)
    passes = dict.fromkeys(("joint_custom_pre_pass", "joint_custom_post_pass"))
    with config.patch(passes), functorch.patch(donated_buffer=True):
        yield


@pytest.fixture
def marked(unmarked):
    """Inductor marks what it compiles, for one test."""
    ignoring.follow_compiled()


@pytest.fixture
def fresh_compiler():
    """Nothing is compiled before the test, and nothing stays compiled after it."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def inductor():
    """Skips a test where inductor can't be used: it needs a compiler of C++."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(torch.sin)(torch.ones(2))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        pytest.skip(f"nothing to compile with here: {error}")
