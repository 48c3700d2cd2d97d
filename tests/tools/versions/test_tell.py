"""One issue is opened, rewritten and closed; a fake `gh` on the path is asked what was done."""

import json
import os
import sys

import pytest

from tools.project import Problem, Project
from tools.versions.differences import KINDS, Difference
from tools.versions.tell import MARKER, ROOM, Watched, changed, digests, read, tell, written

BROKEN = Difference("broken here", "where-over-exp", "10729 · ignoring · x.grad", "1, 0", "1, NaN")
FIXED = Difference("fixed upstream", "where-over-exp", "10729 · vanilla · x.grad", "NaN", "0")


def report(*differences, torch="9.9.0"):
    return Watched(torch, "3.11.7", 100, differences)


def test_the_title_counts_each_kind_and_the_text_lists_it():
    text = written({"release": report(BROKEN, FIXED, FIXED)}, "https://example.org/run")
    assert text.title == "torch 9.9.0: 1 broken here, 2 fixed upstream"
    assert text.body.startswith(MARKER) and "https://example.org/run" in text.body
    assert "### Broken here: 1" in text.body and "### Fixed upstream: 2" in text.body
    assert "Changed upstream" not in text.body and KINDS["broken here"] in text.body
    row = " | ".join(f"<code>{each}</code>" for each in (BROKEN.where, BROKEN.what, BROKEN.recorded, BROKEN.observed))
    assert f"| {row} |" in text.body.splitlines()


def test_the_text_carries_the_digests_of_its_differences():
    text = written({"release": report(BROKEN), "nightly": report(BROKEN, FIXED)})
    assert digests(text.body) == text.digests and len(text.digests) == 3
    # GitHub gives the text back with other ends of lines.
    assert digests(text.body.replace("\n", "\r\n")) == text.digests
    assert digests("a text without") == frozenset()


def test_another_version_of_a_build_with_the_same_differences_is_the_same():
    one, two = (written({"nightly": report(BROKEN, torch=torch)}) for torch in ("9.9.0.dev1", "9.9.0.dev2"))
    assert one.digests == two.digests and one.title != two.title


def test_a_build_without_a_report_is_not_taken_for_all_fine():
    text = written({"release": report(), "nightly": None})
    assert text.title == "torch 9.9.0, nightly: 1 could not be run"
    assert "## nightly: no report" in text.body and "gives no report" in text.body
    assert "No differences." in text.body.partition("## nightly")[0]
    assert written({"release": report(), "nightly": report()}).digests == frozenset()


def test_what_a_text_says_is_never_markup():
    evil = Difference("broken here", "p|q", "@everyone <b>#1", "`a`\n| b |", "[x](y)")
    (row,) = [line for line in written({"release": report(evil)}).body.splitlines() if "everyone" in line]
    assert row.count("|") == 5 and "<b>" not in row
    assert "<code>@everyone &lt;b&gt;#1</code>" in row and "<code>`a` &#124; b &#124;</code>" in row


@pytest.mark.parametrize("count", [100, 2000])
def test_there_is_room_for_any_number_of_differences(count):
    many = [Difference(kind, "p", f"{i} {'<' * 200}", "<" * 200, "<" * 200) for i in range(count) for kind in KINDS]
    text = written({"release": report(*many), "nightly": report(*many)})
    assert len(text.body) <= ROOM and digests(text.body) == text.digests
    assert f"{2 * count} broken here" in text.title
    assert len(changed(text, frozenset())) < ROOM


def test_a_comment_says_what_is_new_and_how_much_is_gone():
    before, after = written({"release": report(BROKEN)}), written({"release": report(FIXED)})
    assert changed(after, before.digests).splitlines() == [
        "The differences changed: 1 new, 1 gone.",
        "- release: fixed upstream: <code>where-over-exp · 10729 · vanilla · x.grad · 0</code>",
    ]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"torch": "9"}'])
def test_half_a_report_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "watched.json").write_text(content)
    assert read(tmp_path / "watched.json") is None


def test_a_report_of_an_unknown_kind_is_none(tmp_path):
    whole = {"torch": "9", "python": "3", "claims": 1, "asked": 2}
    one = {"kind": "broken here", "where": "p", "what": "w", "recorded": "r", "observed": "o"}
    path = tmp_path / "watched.json"
    path.write_text(json.dumps({**whole, "differences": [one]}))
    assert read(path) == Watched("9", "3", 3, (Difference(**one),))
    path.write_text(json.dumps({**whole, "differences": [{**one, "kind": "odd"}]}))
    assert read(path) is None


FAKE = """#!{python}
import json, os, sys
state = {state!r}
issues = json.load(open(state))
arguments = sys.argv[1:]
value = dict(zip(arguments, arguments[1:]))
text = sys.stdin.read() if value.get("--body-file") == "-" else ""
kept = text.replace("\\n", "\\r\\n")  # as GitHub gives it back
with open({log!r}, "a") as log:
    log.write(" ".join(arguments[:2]) + "\\n")
if os.environ.get("GH_TOKEN") != "token":
    sys.exit("gh: no token")
if arguments[:2] == ["issue", "list"]:
    assert value["--state"] == "open" and value["--json"] == "number,title,body"
    print(json.dumps([i for i in issues if i["state"] == "open" and i["label"] == value["--label"]]))
elif arguments[:2] == ["issue", "create"]:
    number = len(issues) + 1
    issues.append(dict(number=number, title=value["--title"], body=kept, label=value["--label"], state="open", said=[]))
    print(f"https://example.org/issues/{{number}}")
elif arguments[:2] == ["issue", "edit"]:
    issues[int(arguments[2]) - 1].update(title=value["--title"], body=kept)
elif arguments[:2] == ["issue", "comment"]:
    issues[int(arguments[2]) - 1]["said"].append(text)
elif arguments[:2] == ["issue", "close"]:
    issues[int(arguments[2]) - 1]["state"] = "closed"
    issues[int(arguments[2]) - 1]["said"].append(value["--comment"])
else:
    assert arguments[:2] == ["label", "create"] and "--force" in arguments
json.dump(issues, open(state, "w"))
"""


class Hub:
    """A repository whose issues a fake `gh` keeps, and the reports that were fetched."""

    def __init__(self, folder):
        self.folder, self.state, self.log = folder, folder / "issues.json", folder / "log"
        self.state.write_text("[]")
        for name in ("_config.yml", "_toc.yml"):
            (folder / name).write_text("{}")
        gh = folder / "bin" / "gh"
        gh.parent.mkdir()
        gh.write_text(FAKE.format(python=sys.executable, state=str(self.state), log=str(self.log)))
        gh.chmod(0o755)

    @property
    def issues(self):
        return json.loads(self.state.read_text())

    def found(self, build, *differences, torch="9.9.0"):
        path = self.folder / "_build" / "watched" / build / "watched.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = [vars(each) for each in differences]
        content = {"torch": torch, "python": "3.11.7", "claims": 5, "asked": 2, "differences": listed}
        path.write_text(json.dumps(content))

    def tell(self):
        """Tell, and return what was done."""
        self.log.write_text("")
        tell(Project(self.folder))
        return self.log.read_text().splitlines()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BUILDS", "release")
    monkeypatch.setenv("GH_TOKEN", "token")
    return hub


def test_nothing_is_opened_while_all_is_as_recorded(hub, capsys):
    hub.found("release")
    assert hub.tell() == ["issue list"]
    assert capsys.readouterr().out == "no differences\n" and hub.issues == []


def test_one_issue_is_opened_and_left_alone_while_nothing_changes(hub, capsys):
    hub.found("release", BROKEN)
    assert hub.tell() == ["issue list", "label create", "issue create"]
    assert capsys.readouterr().out == "opened https://example.org/issues/1\n"
    assert hub.issues[0]["title"] == "torch 9.9.0: 1 broken here"
    for _ in range(2):
        assert hub.tell() == ["issue list"]
    assert capsys.readouterr().out == "#1 is up to date; its differences are the same as before\n" * 2
    hub.found("release", BROKEN, torch="9.9.1")
    assert hub.tell() == ["issue list", "issue edit"]
    assert hub.issues[0]["title"].startswith("torch 9.9.1") and hub.issues[0]["said"] == []


def test_a_comment_is_made_when_the_differences_change(hub, capsys):
    hub.found("release", BROKEN)
    hub.tell()
    hub.found("release", BROKEN, FIXED)
    assert hub.tell() == ["issue list", "issue edit", "issue comment"]
    assert "1 new, 0 gone" in hub.issues[0]["said"][0]
    assert hub.tell() == ["issue list"]
    assert capsys.readouterr().out.endswith("the same as before\n")


def test_it_is_closed_with_a_word_and_a_new_one_is_opened_later(hub, capsys):
    hub.found("release", BROKEN)
    hub.tell()
    hub.found("release")
    assert hub.tell() == ["issue list", "issue close"]
    assert hub.issues[0]["state"] == "closed"
    assert hub.issues[0]["said"] == ["No differences on torch 9.9.0. 7 results were compared with the record."]
    hub.found("release", BROKEN)
    assert hub.tell()[-1] == "issue create"
    assert [issue["state"] for issue in hub.issues] == ["closed", "open"]


def test_an_open_issue_stays_open_when_the_build_could_not_be_looked_at(hub, monkeypatch, capsys):
    hub.found("release", BROKEN)
    hub.tell()
    (hub.folder / "_build" / "watched" / "release" / "watched.json").unlink()
    assert hub.tell() == ["issue list", "issue edit", "issue comment"]
    assert hub.issues[0]["state"] == "open" and "could not be run" in hub.issues[0]["title"]


def test_issues_of_others_are_left_alone(hub, capsys):
    theirs = {"number": 1, "title": "t", "state": "open", "said": [], "label": "upstream", "body": "not ours"}
    marked = {**theirs, "number": 2, "label": "bug", "body": f"{MARKER} 00000000 -->"}
    hub.state.write_text(json.dumps([theirs, marked]))
    hub.found("release", BROKEN)
    assert hub.tell()[-1] == "issue create"
    assert hub.issues[:2] == [theirs, marked]


def test_a_refusal_is_told_in_the_words_of_gh(hub, monkeypatch):
    hub.found("release", BROKEN)
    monkeypatch.setenv("GH_TOKEN", "")
    with pytest.raises(Problem, match="^gh issue list failed: gh: no token$"):
        hub.tell()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Problem, match="gh, GitHub's command line, is not installed"):
        hub.tell()


def test_without_builds_it_says_what_to_set(hub, monkeypatch):
    monkeypatch.setenv("BUILDS", " ")
    with pytest.raises(Problem, match="BUILDS names no build"):
        hub.tell()
