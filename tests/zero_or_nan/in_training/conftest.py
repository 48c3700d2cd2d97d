"""What a row of the page shows is what its test runs."""

import inspect

import pytest


@pytest.fixture(autouse=True)
def a_row_shows_lines_of_its_test(request):
    for marker in request.node.iter_markers("setup"):
        name, code, remark = marker.args
        shown, run = code.splitlines(), iter(inspect.getsource(request.function).splitlines())
        assert all(line.strip() in map(str.strip, run) for line in shown), f"{name} does not run these lines, in order"
        assert len(shown) <= 5 and all(len(line) <= 60 for line in shown), f"{name} shows too much"
        assert len(remark.split()) <= 25, f"{name} says too much"
