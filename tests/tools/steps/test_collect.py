"""What a page states reaches the machine-readable side whole, and nothing else does."""

import json
import re
from importlib.metadata import version
from math import nan
from pathlib import Path

import nbformat
import pytest
from jsonschema import Draft202012Validator
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from scratch import ROOT

from helpers import Case, Claim, Verdict, recorded
from helpers.compare import Tolerance
from helpers.entries import MASKED, outcome
from tools.project import Problem, Project
from tools.steps.collect import MIME, statements
from tools.steps.record import add, record
from tools.steps.record import outcome as recorded_outcome


def claim(expected: object, method: str = "vanilla", quantity: str = "x.grad") -> Claim:
    return Claim("10729", method, quantity, outcome(expected), outcome([nan, 1.0, MASKED, -0.0]), Tolerance(ulps=2))


GOOD, BAD = claim([nan, 1.0, MASKED, 0.0]), claim([0.0, 1.0, MASKED, 0.0], method="masked")
VERDICT = Verdict(
    "10729", "x.grad", outcome([0.0, 1.0, MASKED, 0.0]), {"vanilla": GOOD}, {"vanilla": "right"}, list("abcd"), 2
)


def page(*shown: object) -> nbformat.NotebookNode:
    """A notebook that showed these, after a round through its file format."""
    cells = [new_markdown_cell("# Words"), new_code_cell("nothing")]
    for item in shown:
        data = {"text/plain": item.text(), "text/html": item.html(), MIME: item.json()}
        outputs = [new_output("stream", text="said\n"), new_output("display_data", data={"text/plain": "x"})]
        cells.append(new_code_cell("shown", outputs=[*outputs, new_output("display_data", data=data)]))
    return nbformat.reads(nbformat.writes(new_notebook(cells=cells)), as_version=4)


RELEASE = version("torch").split("+")[0]


def kept(path: Path) -> dict[str, list[dict]]:
    """The outcomes of every run in a record, by the run's name."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {f"{run['torch']} {run['device']}": run["outcomes"] for run in recorded.runs(content)}


def of(torch: str, *shown: object, **changes: object) -> list[dict]:
    """What another version of PyTorch gave."""
    return [{**fact, "torch": torch, **changes} for fact in statements(page(*shown), "p")]


def test_a_record_keeps_what_was_claimed_and_seen(project):
    path = record(project, statements(page(GOOD, BAD, VERDICT, Case("4132")), "p"))
    assert path == project.root / "results" / "claims.json"
    ((name, outcomes),) = kept(path).items()
    assert name == f"{RELEASE} cpu"
    assert outcomes[0] == {
        "page": "p",
        "type": "claim",
        "case": "10729",
        "method": "vanilla",
        "quantity": "x.grad",
        "expected": GOOD.expected.json(),
        "observed": GOOD.observed.json(),
        "tolerance": "within 2 ulps",
        "holds": True,
    }
    assert [fact["holds"] for fact in outcomes] == [True, False, False]
    assert outcomes[2]["observed"] == {"vanilla": "contaminated"}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_record_of_one_release_leaves_the_others_and_says_where_they_differ(project):
    record(project, of("2.9.0", GOOD, VERDICT))
    record(project, of("2.10.0", GOOD, VERDICT))
    before = kept(record(project, of("2.10.0", GOOD, VERDICT, device="cuda")))
    changed = Claim("10729", "vanilla", "x.grad", GOOD.expected, outcome([1.0, nan]), GOOD.tolerance)
    path = record(project, of("2.10.0", changed, VERDICT))
    assert kept(path) == {**before, "2.10.0 cpu": [recorded_outcome(fact) for fact in of("", changed, VERDICT)]}
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content["runs"]) == ["2.9.0 cpu", "2.10.0 cpu", "2.10.0 cuda"]
    lines = [(line.get("on"), line["type"], line["observed"]) for line in content["outcomes"]]
    assert lines == [
        (["2.9.0 cpu", "2.10.0 cuda"], "claim", "float64[4]: NaN 1 -- -0"),
        (["2.10.0 cpu"], "claim", "float64[2]: 1 NaN"),
        (None, "verdict", {"vanilla": "contaminated"}),
    ]


def test_a_new_claim_is_of_its_release_alone_and_one_that_is_no_more_is_of_none(project, capsys):
    record(project, of("2.9.0", GOOD, VERDICT))
    assert "removed" not in capsys.readouterr().out
    path = record(project, of("2.10.0", BAD, VERDICT))
    assert [[fact.get("method") for fact in facts] for facts in kept(path).values()] == [[None], ["masked", None]]
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in said] == ["p · claim · 10729 · vanilla · x.grad"]


def test_a_run_that_did_not_come_to_its_end_removes_nothing_from_others(project, capsys):
    third = claim([1.0], quantity="third")
    record(project, of("2.9.0", GOOD, BAD, third))
    path = record(project, of("2.10.0", GOOD, third), complete=False)
    assert [len(facts) for facts in kept(path).values()] == [3, 2]
    assert [fact["method"] for fact in kept(path)["2.9.0 cpu"]] == ["vanilla", "masked", "vanilla"]  # the pages' order
    assert "removed" not in capsys.readouterr().out


def test_two_claims_that_are_called_the_same_are_refused_and_named(project):
    facts = list(statements(page(GOOD, GOOD), "p"))
    with pytest.raises(Problem, match="more than one claim is called p · claim · 10729 · vanilla · x.grad"):
        record(project, facts)
    assert not project.results.exists()


@pytest.mark.parametrize(
    "value",
    [7, True, nan, -0.0, [], [[1, 2]], [0.1, MASKED, -float("inf")], None, TypeError("no: a[0]\tmm")],
    ids=str,
)
def test_every_kind_of_outcome_comes_back_as_it_was(project, value):
    expected = outcome(value)
    since = [{"since": "", "expected": expected.json(), "pull": None}, {"since": "2.9", "expected": expected.json(),
             "pull": 7}]  # fmt: skip
    fact = Claim("10729", "vanilla", "x.grad", expected, expected, Tolerance()).json()
    run = {"torch": "2.9.0", "device": "cpu", "python": "3", "machine": "m"}
    given = recorded_outcome({**fact, "page": "p", "history": since})
    path = add(project, {**run, "outcomes": [given]}, complete=True)
    assert recorded.runs(json.loads(path.read_text(encoding="utf-8"))) == [{**run, "outcomes": [given]}]


def test_the_record_has_the_form_that_the_schema_describes():
    schema = json.loads((ROOT / "results" / "schema.json").read_text(encoding="utf-8"))
    text = Project(ROOT).claims.read_text(encoding="utf-8")
    content = json.loads(text)
    assert [error.message for error in Draft202012Validator(schema).iter_errors(content)] == []
    assert not re.search(r"/(root|home|tmp|usr|Users)/|site-packages|0x[0-9a-f]{6}", text)
    assert len(recorded.runs(content)) > 1


def test_a_record_of_two_devices_or_of_nothing_is_refused(project):
    one, two = list(statements(page(GOOD, BAD), "p"))
    with pytest.raises(Problem, match="one version of PyTorch and one device; these ran on: .* on cpu, .* on cuda"):
        record(project, [one, {**two, "device": "cuda"}])
    with pytest.raises(Problem, match="these ran on: none"):
        record(project, [])
    assert not project.results.exists()
