"""What cells show, compared with the record: every change is found and named, and the exceptions are not."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.project import Problem, write_record
from tools.steps import outputs
from tools.steps.collect import ChapterRun

ROOT = Path.cwd()


def cell(source, *shown, tags=()):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": list(shown)}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def displayed(**data):
    return {"output_type": "display_data", "data": {key.replace("_", "/"): value for key, value in data.items()}}


def differences(tmp_path, before, now):
    project = SimpleNamespace(outputs=tmp_path / "outputs.json", root=tmp_path)
    runs = [ChapterRun(Path("page.md"), {"cells": cells}, 0.0, cached=False) for cells in (before, now)]
    outputs.record_outputs(project, runs[:1])
    recorded = outputs.Recorded.read(project)
    assert recorded.applies and recorded.differences(runs[0]) == []
    return recorded.differences(runs[1])


FIRST, SECOND = cell("a = 1\nprint(a)", printed("one\n")), cell("print(2)", printed("two\nlines\n"))


@pytest.mark.parametrize(
    "now, said",
    [
        ([FIRST, cell("print(2)", printed("two\nwords\n"))], [r"code cell 2 \(print\(2\)\).*  - lines\n  \+ words"]),
        ([cell("print(1)", printed("1\n")), SECOND], [r"code cell 1 \(print\(1\)\).*\n  - one\n  \+ 1"]),
        ([cell("print(1)", printed("one\n")), SECOND], []),  # other code that shows the same
        ([FIRST, cell("print(0)", printed("new\n")), SECOND], [r"code cell 2 .* not in the record:\n  \+ new"]),
        ([FIRST, cell("silent = 1"), SECOND], []),
        ([SECOND], [r"the record has an output that no cell shows any more:\n  - one"]),
        ([FIRST, cell("print(2)")], [r"no cell shows any more:\n  - two\n  - lines"]),
        ([FIRST, cell("print(2)", printed("two\nlines\n"), printed("more\n"))], [r"\+ more"]),
        ([FIRST, cell("print(2)", {"output_type": "error", "ename": "E", "evalue": "no"})], [r"\+ E: no"]),
    ],
)
def test_what_a_cell_shows_is_compared_with_what_it_showed(tmp_path, now, said):
    found = differences(tmp_path, [FIRST, SECOND], now)
    assert len(found) == len(said) and all(re.search(*pair, re.DOTALL) for pair in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    "before, now, tags, same",
    [
        ("Cell In[3], line 1", "Cell In[12], line 1", (), True),
        ("Cell In[3], line 1", "Cell In[3], line 2", (), False),
        ("torch 2.13.0+cpu", "torch 2.13.0+cu130", (), True),
        ("torch 2.13.0", "torch 2.13.1", (), False),
        ("x 0.1234567 nan", "x 0.1234568 nan", ("rounded",), True),
        ("x 0.1234567 nan", "x 0.1234597 nan", ("rounded",), False),
        ("x 0.1234567 nan", "x 0.1234567 inf", ("rounded",), False),
        ("1.5e+38", "1.5e+37", ("rounded",), False),
        ("[1.0]", "[1.0, 1.0]", ("rounded",), False),
        ("step 75  loss 3e+06\nlast", "step 75  loss 7e+08\nstep 76  loss inf\nlast", ("processor",), True),
        ("step 75  loss 3e+06", "step 75  less 3e+06", ("processor",), False),
        ("step 75\nlast", "step 75", ("processor",), False),
        ("tensor(0.)", "tensor(4.7684e-07)", ("processor",), True),
        ("furthest apart: 4.7e-08", "furthest apart: 9.6e-08", (), False),
    ],
)
def test_only_what_is_excepted_by_name_may_differ(tmp_path, before, now, tags, same):
    found = differences(tmp_path, [cell("c", printed(before), tags=tags)], [cell("c", printed(now), tags=tags)])
    assert (found == []) is same


@pytest.mark.parametrize("tags", [(), ("remove-stderr",)])
def test_a_warning_is_compared_where_the_page_shows_it(tmp_path, tags):
    warned = {"output_type": "stream", "name": "stderr", "text": "UserWarning: w\n"}
    before, now = [cell("c", printed("1\n"), tags=tags)], [cell("c", printed("1\n"), warned, tags=tags)]
    assert bool(differences(tmp_path, before, now)) is not bool(tags)
    assert differences(tmp_path, [cell("c", printed("1\n"), tags=tags)], [cell("c", printed("2\n"), warned, tags=tags)])


def test_a_picture_is_compared_by_its_drawing_and_a_claim_by_the_claim(tmp_path):
    picture = {"text_plain": "[figure: A line.]", "text_html": "<svg>1</svg>"}
    drawn = cell("c", displayed(**picture))
    assert differences(tmp_path, [drawn], [cell("c", displayed(**{**picture, "text_html": "<svg>2</svg>"}))])
    table = cell("c", displayed(text_plain="1 2", text_html="<table class=old>"))
    assert not differences(tmp_path, [table], [cell("c", displayed(text_plain="1 2", text_html="<table class=new>"))])
    claim = displayed(text_plain="holds: 1 on torch 2.6", **{outputs.MIME.replace("/", "_"): {"type": "claim"}})
    assert not differences(tmp_path, [cell("c", claim)], [cell("c")])


def test_what_was_read_of_a_thread_is_compared_and_so_are_the_tags_of_a_cell(tmp_path):
    read = {"type": "thread", "title": "a", "url": "u", "state": "Open.", "looked_up": "2026-01-01"}
    now = [cell("c", displayed(**{outputs.MIME.replace("/", "_"): {**read, **new}})) for new in ({}, {"title": "b"})]
    (said,) = differences(tmp_path, now[:1], now[1:])
    assert "  - a\n  + b\n" in said
    (said,) = differences(tmp_path, [cell("c", printed("1"))], [cell("c", printed("1"), tags=["processor"])])
    assert said == "code cell 1 (c) has other tags than recorded: recorded none, now processor"
    new = ChapterRun(Path("new.md"), {"cells": []}, 0.0, cached=False)
    recorded = outputs.Recorded.read(SimpleNamespace(outputs=tmp_path / "outputs.json", root=tmp_path))
    assert recorded.differences(new) == ["the page is not in the record"]


@pytest.mark.parametrize("made_with", [{"torch": "2.0.0"}, {"matplotlib": "1.0"}, {"device": "cuda"}])
def test_a_record_of_another_environment_is_an_error_where_the_pinned_one_is_installed(tmp_path, made_with):
    project, here = SimpleNamespace(outputs=tmp_path / "outputs.json", root=tmp_path), outputs.environment()
    write_record(project.outputs, {"made_with": {**here, **made_with}, "pages": {}})
    pins = "torch=={torch} \\\n    --hash=sha256:0\nmatplotlib=={matplotlib}\n    # via x\n"
    (tmp_path / "requirements.txt").write_text(pins.format(**{**here, "torch": "2.99.0"}), encoding="utf-8")
    assert not outputs.Recorded.read(project).applies  # a reader's PyTorch
    (tmp_path / "requirements.txt").write_text(pins.format(**here), encoding="utf-8")
    with pytest.raises(Problem, match=r"outputs.json was recorded with .* pins what is installed.* run `make record`"):
        outputs.Recorded.read(project)
