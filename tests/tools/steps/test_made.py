"""What is remembered of a result is believed only where its sources and the result itself are still the same."""

from types import SimpleNamespace

import pytest

from tools.steps.made import Made


@pytest.fixture
def project(tmp_path):
    return SimpleNamespace(build=tmp_path / "_build")


def test_what_was_remembered_and_saved_is_known_to_the_next_build(project):
    made = Made(project)
    made.remember("a", "1", "2")
    assert made.is_current("a", "1", "2")
    assert not Made(project).is_current("a", "1", "2")
    made.save()
    again = Made(project)
    assert again.is_current("a", "1", "2")
    assert not any(again.is_current(*other) for other in [("a", "1", "3"), ("a", "0", "2"), ("b", "1", "2")])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_file_that_is_not_ours_is_as_good_as_none(project, content):
    project.build.mkdir()
    (project.build / "made.json").write_bytes(content)
    made = Made(project)
    assert not made.is_current("a", "1", "2")
    made.remember("a", "1", "2")
    made.save()
    assert Made(project).is_current("a", "1", "2")
