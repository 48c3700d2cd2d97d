"""What a page states reaches the machine-readable side whole, and nothing else does."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from jsonschema import Draft202012Validator
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from scratch import ROOT

from helpers import Case, Claim, Verdict, show
from helpers.compare import Tolerance
from helpers.entries import MASKED, outcome
from tools.project import Problem, Project
from tools.steps.collect import MIME, checked, collect, failed, statements
from tools.steps.ran import Run
from tools.steps.record import outcome as recorded_outcome
from tools.steps.record import record, record_file

nan = float("nan")


def claim(expected: object, way: str = "vanilla", quantity: str = "x.grad") -> Claim:
    return Claim("10729", way, quantity, outcome(expected), outcome([nan, 1.0, MASKED, -0.0]), Tolerance(ulps=2))


GOOD, BAD = claim([nan, 1.0, MASKED, 0.0]), claim([0.0, 1.0, MASKED, 0.0], way="masked")
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


def test_the_type_is_the_one_that_the_helpers_use():
    assert MIME == show.MIME


@pytest.mark.parametrize("item", [GOOD, BAD, VERDICT, Case("4132")], ids=["holds", "fails", "verdict", "case"])
def test_a_statement_comes_back_as_it_was_made(item):
    assert list(statements(page(item), "some-page")) == [{**item.json(), "page": "some-page"}]


def test_statements_come_in_the_order_of_pages_and_cells():
    runs = [
        Run(Path("chapters/b.md"), page(GOOD, BAD), 0, cached=True),
        Run(Path("chapters/a.md"), page(VERDICT), 0, cached=False),
    ]
    assert [(fact["page"], fact["type"]) for fact in collect(runs)] == [
        ("b", "claim"),
        ("b", "claim"),
        ("a", "verdict"),
    ]


def test_claims_and_verdicts_can_fail_and_cases_can_not():
    facts = list(statements(page(GOOD, BAD, VERDICT, Case("4132")), "p"))
    assert [fact["type"] for fact in checked(facts)] == ["claim", "claim", "verdict"]
    assert [(fact["type"], fact.get("way")) for fact in failed(facts)] == [("claim", "masked"), ("verdict", None)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return Project(tmp_path)


def test_a_record_keeps_what_was_claimed_and_seen(project):
    path = record(project, statements(page(GOOD, BAD, VERDICT, Case("4132")), "p"))
    release = version("torch").split("+")[0]
    assert path == record_file(project, release) == project.root / "results" / f"torch-{release}-cpu.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["torch"] == release and content["device"] == "cpu"
    assert content["outcomes"][0] == {
        "page": "p",
        "type": "claim",
        "case": "10729",
        "way": "vanilla",
        "quantity": "x.grad",
        "expected": GOOD.expected.json(),
        "observed": GOOD.observed.json(),
        "tolerance": "within 2 ulps",
        "holds": True,
    }
    assert [fact["holds"] for fact in content["outcomes"]] == [True, False, False]
    assert content["outcomes"][2]["observed"] == {"vanilla": "contaminated"}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_an_interrupted_record_leaves_the_one_before(project, monkeypatch):
    path = record(project, statements(page(GOOD), "p"))
    before = path.read_bytes()

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(project, statements(page(GOOD, BAD), "p"))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_is_recorded_for_this_torch_is_what_the_chapters_claim_now(facts):
    path = record_file(Project(ROOT), version("torch").split("+")[0])
    if not path.exists():
        pytest.skip(f"nothing is recorded for torch {version('torch')}: run `make record`")
    recorded = json.loads(path.read_text(encoding="utf-8"))["outcomes"]

    def names(outcomes: list[dict]) -> list[tuple]:
        keys = ("page", "type", "case", "way", "quantity")
        return sorted(tuple(str(fact.get(key)) for key in keys) for fact in outcomes)

    now = [recorded_outcome(fact) for fact in checked(facts)]
    assert names(recorded) == names(now)
    assert [fact for fact in recorded if not fact["holds"]] == []
    assert [fact["expected"] for fact in recorded] == [fact["expected"] for fact in now]


def test_every_record_says_of_which_version_and_device_it_is():
    for path in sorted((ROOT / "results").glob("torch-*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert path == record_file(Project(ROOT), content["torch"], content["device"])


def test_every_record_has_the_form_that_the_schema_describes():
    schema = json.loads((ROOT / "results" / "schema.json").read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    paths = sorted((ROOT / "results").glob("torch-*.json"))
    assert len(paths) > 1
    for path in paths:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        assert [error.message for error in validator.iter_errors(content)] == [], path
        assert text == json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        assert not re.search(r"/(root|home|tmp|usr|Users)/|site-packages|0x[0-9a-f]{6}", text), path
        places = [tuple(str(fact.get(key)) for key in ("page", "type", "case", "way", "quantity"))
                  for fact in content["outcomes"]]  # fmt: skip
        assert len(places) == len(set(places)), path  # a link leads to one claim


@pytest.mark.parametrize(
    "wrong",
    [
        {"torch": "2.13.0+cpu"},
        {"device": ""},
        {"seconds": 1.0},
        {"outcomes": []},
        {"outcomes": [{"type": "claim"}]},
        {"outcomes": [{"type": "guess"}]},
    ],
)
def test_the_schema_refuses_what_is_something_else(wrong):
    schema = json.loads((ROOT / "results" / "schema.json").read_text(encoding="utf-8"))
    content = json.loads((ROOT / "results" / "torch-2.13.0-cpu.json").read_text(encoding="utf-8"))
    assert not Draft202012Validator(schema).is_valid({**content, **wrong})


def test_the_same_facts_make_the_same_bytes_and_the_device_is_the_runs(project):
    facts = [{**fact, "device": "cuda"} for fact in statements(page(GOOD, VERDICT), "p")]
    path = record(project, facts)
    assert path == record_file(project, version("torch").split("+")[0], "cuda")
    before = path.read_bytes()
    assert json.loads(before)["device"] == "cuda"
    assert record(project, facts).read_bytes() == before


def test_a_record_of_two_devices_or_of_nothing_is_refused(project):
    one, two = list(statements(page(GOOD, BAD), "p"))
    with pytest.raises(Problem, match="one version of PyTorch and one device; these ran on: .* on cpu, .* on cuda"):
        record(project, [one, {**two, "device": "cuda"}])
    with pytest.raises(Problem, match="these ran on: none"):
        record(project, [])
    assert not project.results.exists()


def test_of_a_message_the_first_line_is_kept(project):
    case = Case("67180")
    with case.raises("masked", "mm", TypeError, "MaskedTensor"):
        raise TypeError("no mm for MaskedTensor\n\nsee /usr/lib/python")
    fact = json.loads(record(project, statements(page(case.claims[0]), "p")).read_text(encoding="utf-8"))["outcomes"][0]
    assert fact["observed"] == {"raised": "TypeError", "message": "no mm for MaskedTensor"}
