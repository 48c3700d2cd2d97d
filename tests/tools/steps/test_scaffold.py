"""`make chapter NAME=…`: a chapter that runs, whose build names the claims to fill in, and nothing half-written."""

import re

import pytest
import yaml
from scratch import ROOT, Book

import helpers.threads
from tools.project import Problem, Project
from tools.steps.scaffold import MARK, TEMPLATE, scaffold, with_line, with_thread


@pytest.fixture
def book(tmp_path):
    made = Book(tmp_path, {"welcome": ["1"], "one": ["2"]})
    return made


def files(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def known(source):
    """The threads of another list than the one that is imported."""
    names: dict = {"__name__": helpers.threads.__name__}
    exec(compile(source, "threads.py", "exec"), names)
    return names["THREADS"]


def test_a_chapter_has_its_page_its_line_and_its_thread(book):
    said = scaffold(Project(book.root), "issue-12345")
    assert "chapters/issue-12345.md, _toc.yml, src/helpers/threads.py" in said
    assert "make check CHAPTER=issue-12345" in said
    assert Project(book.root).names[-1] == "chapters/issue-12345"
    page = book.chapter("issue-12345").read_text(encoding="utf-8")
    assert 'Case("12345")' in page and "pytorch#12345" in page and "@" not in page
    threads = (book.root / "src" / "helpers" / "threads.py").read_text(encoding="utf-8")
    thread = known(threads)["12345"]
    assert thread.url == "https://github.com/pytorch/pytorch/issues/12345" and thread.title.startswith(MARK)


def test_a_name_without_a_number_is_its_own_key_and_a_thread_that_is_there_stays(book):
    path = book.root / "src" / "helpers" / "threads.py"
    before = path.read_text(encoding="utf-8")
    said = scaffold(Project(book.root), "issue-10729")
    assert path.read_text(encoding="utf-8") == before and "threads.py" not in said
    scaffold(Project(book.root), "log-of-zero")
    assert 'Case("log-of-zero")' in book.chapter("log-of-zero").read_text(encoding="utf-8")
    assert known(path.read_text(encoding="utf-8"))["log-of-zero"].number is None


@pytest.mark.parametrize(
    "name", ["", "one", "Issue-1", "issue 1", "../one", "issue_1", "-a", "a-", "a--b", "ä", "one.md", "a\n", "a/b"]
)
def test_a_name_that_is_taken_or_not_allowed_leaves_everything_as_it_was(book, name):
    before = files(book.root)
    with pytest.raises(Problem):
        scaffold(Project(book.root), name)
    assert files(book.root) == before


def test_a_name_of_a_file_that_no_contents_have_is_taken_too(book):
    book.chapter("draft").write_text("words", encoding="utf-8")
    before = files(book.root)
    with pytest.raises(Problem, match="draft.md exists"):
        scaffold(Project(book.root), "draft")
    assert files(book.root) == before


def test_an_interruption_leaves_nothing_half_written(book, monkeypatch):
    import tools.steps.scaffold as module

    written = []

    def write(path, content, real=module.write):
        if path.name == "threads.py" and not written:
            written.append(path)
            raise KeyboardInterrupt
        real(path, content)

    before = files(book.root)
    monkeypatch.setattr(module, "write", write)
    with pytest.raises(KeyboardInterrupt):
        scaffold(Project(book.root), "issue-12345")
    assert files(book.root) == before and written


def test_a_list_of_threads_that_is_not_as_expected_stops_before_anything_is_written(book):
    (book.root / "src" / "helpers" / "threads.py").write_text("THREADS = {}\n")
    before = files(book.root)
    with pytest.raises(Problem, match=r"threads\.py"):
        scaffold(Project(book.root), "issue-12345")
    assert files(book.root) == before


@pytest.mark.parametrize(
    "contents",
    [
        "format: jb-book\nroot: chapters/a\n",
        "format: jb-book\nroot: chapters/a\nchapters:\n  - file: chapters/b\n",
        "format: jb-book\nroot: chapters/a\nparts:\n  - caption: One\n    chapters:\n      - file: chapters/b\n"
        "        title: B\n  - caption: Two\n    chapters:\n      - file: chapters/bb\n",
        (ROOT / "_toc.yml").read_text(encoding="utf-8"),
    ],
)
def test_the_line_is_the_last_of_the_first_part_and_all_others_stay(contents):
    after = with_line(contents, "new")
    kept = [line for line in after.splitlines() if "chapters/new" not in line and MARK not in line]
    added = [] if "chapters:" in contents else ["chapters:"]
    assert kept == contents.splitlines() + added
    settings = yaml.safe_load(after)
    last = (settings.get("parts") or [settings])[0]["chapters"][-1]
    assert last["file"] == "chapters/new" and last["title"].startswith(MARK)


def test_the_stub_is_formatted_as_the_list_is():
    text = (ROOT / "src" / "helpers" / "threads.py").read_text(encoding="utf-8")
    for key, is_issue in (("1", True), ("a-b", False)):
        assert re.search(
            r"\n    (upstream|Thread)\(\n        .*,\n    \),\n\)\nTHREADS", with_thread(text, key, is_issue), re.S
        )


def test_every_claim_of_the_template_is_to_be_filled_in():
    text = TEMPLATE.read_text(encoding="utf-8")
    claims = re.findall(r"(?m)^case\.claim\(.*", text)
    assert len(claims) == 4 and all(", ...)" in claim for claim in claims)


@pytest.mark.parametrize("arguments, said", [((), "no name is given"), (("Not a name",), "can't be the name")])
def test_the_command_says_what_is_wrong_in_one_line(book, arguments, said):
    done = book.here("chapter", *arguments)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1
