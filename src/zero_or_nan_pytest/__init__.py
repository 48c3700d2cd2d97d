"""A pytest plugin: a test that returns a loss and an example fails if `explain.probe` finds a NaN.

    @pytest.mark.zero_or_nan
    def test_my_loss():
        return my_loss, torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 0])

The marker takes the options of `explain.probe`, as in `@pytest.mark.zero_or_nan(seconds=2)`. The plugin is a package
beside the library, because pytest imports it in every run, and the library imports torch.
"""

from __future__ import annotations

import contextlib
import inspect
import io

import pytest

MARKER = (
    "zero_or_nan(seconds=10, seed=0): the test returns a loss and its inputs, and fails if one of them can give NaN"
)


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest about the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test, and search the loss that it returns."""
    marker = pyfuncitem.get_closest_marker("zero_or_nan")
    if marker is None:
        return None
    from zero_or_nan import explain

    wanted = inspect.signature(pyfuncitem.obj).parameters
    returned = pyfuncitem.obj(**{name: value for name, value in pyfuncitem.funcargs.items() if name in wanted})
    if not isinstance(returned, tuple) or not returned or not callable(returned[0]):
        pytest.fail("a test with the marker zero_or_nan returns the loss and its inputs: return loss_fn, x, y")
    is_shown = pyfuncitem.config.getoption("capture") == "no"
    with contextlib.nullcontext() if is_shown else contextlib.redirect_stderr(io.StringIO()):
        report = explain.probe(*returned, **marker.kwargs)
    if not report.ok:
        pytest.fail(str(report), pytrace=False)
    return True
