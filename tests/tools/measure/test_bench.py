"""What is measured is what it says: copies that no cache mistakes for each other, and ratios of what was timed."""

from jupyter_cache import get_cache
from scratch import ROOT

from tools.measure.bench import Scratch, _report
from tools.project import Project
from tools.steps.pair import pair
from tools.steps.read import read


def test_multiplied_chapters_are_all_in_the_contents_and_all_different(tmp_path):
    scratch = Scratch(Project(ROOT), tmp_path / "book", times=2)
    project = Project(scratch.folder)
    assert len(project.chapters) == 1 + 2 * (len(Project(ROOT).chapters) - 1)
    cache = get_cache(tmp_path / "cache")
    keys = {cache.create_hashed_notebook(read(chapter))[1] for chapter in project.chapters}
    assert len(keys) == len(project.chapters)


def test_an_edit_changes_the_code_of_one_chapter(tmp_path):
    scratch = Scratch(Project(ROOT), tmp_path / "book", times=1)
    cache = get_cache(tmp_path / "cache")

    def keys():
        return {path: cache.create_hashed_notebook(read(path))[1] for path in Project(scratch.folder).chapters}

    first = keys()
    scratch.edit(1)
    second = keys()
    scratch.edit(2)
    third = keys()
    assert [path.stem for path in first if first[path] != second[path]] == ["where-over-division"]
    assert [path.stem for path in first if third[path] != second[path]] == ["where-over-division"]


def test_after_cleaning_no_notebook_of_an_earlier_build_stops_the_next_build(tmp_path):
    scratch = Scratch(Project(ROOT), tmp_path / "book", times=1)
    project = Project(scratch.folder)
    pair(project)
    scratch.edit(1)
    scratch.clean()
    assert pair(project) == [project.notebook(chapter) for chapter in project.chapters]


def test_the_table_has_the_ratios():
    text = _report(
        [(10, "cold", {"ours": 10.0, "stock": 40.0, "floor": 8.0}), (10, "warm", {"ours": 3.0, "stock": 2.0})]
    )
    assert "| 10 | cold | 10.0 | 40.0 | 8.0 | 0.25 | 1.25 |" in text
    assert "| 10 | warm | 3.0 | 2.0 |  | 1.50 |  |" in text
