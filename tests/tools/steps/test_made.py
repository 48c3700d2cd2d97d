"""What is remembered of a result is believed only where its sources and the result itself are still the same."""

from types import SimpleNamespace

import pytest

from tools.steps.made import Made


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_file_that_is_not_ours_is_as_good_as_none(tmp_path, content):
    project = SimpleNamespace(build=tmp_path / "_build")
    project.build.mkdir()
    (project.build / "made.json").write_bytes(content)
    made = Made(project)
    assert not made.is_current("a", "1", "2")
    made.remember("a", "1", "2")
    made.save()
    assert Made(project).is_current("a", "1", "2")
