"""What was measured: the recorded files are whole, and the tables say what they hold."""

import re

import pytest
from scratch import ROOT

from tools.measure import costs, costs_shown, fixed, penguins
from tools.pages.measured import DRAWN, drawn
from tools.project import Project

pytestmark = pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor")  # it makes its own

ROWS = [
    {"case": "a model", "entries": None, "contaminated": c, "seconds": {w: {"forward": 1.0, "backward": b}
     for w, b in (("plain", 2.0), ("ignoring", 3.0))}, "peak": {"plain": 10, "ignoring": 12}}
    for c in (False, True)
] + [
    {"case": "a tiny <model>", "entries": None, "contaminated": c, "seconds": {w: {"forward": 1.0, "backward": b}
     for w, b in (("plain", 1.0), ("ignoring", 5.0 + c))}}
    for c in (False, True)
] + [
    {"case": f"where over exp, {n} elements", "entries": n, "contaminated": c,
     "seconds": {w: {"forward": n, "backward": b * n}
                 for w, b in (("plain", 1), ("ignoring", 2), ("double where", 1), ("masked", 3))}}
    for n in (10, 100) for c in (False, True)
]  # fmt: skip

COMPILED = [
    {"case": "a <layer>, inductor", "entries": None, "contaminated": c, "seconds": {w: {"forward": 1.0, "backward": b}
     for w, b in (("plain", 2.0), ("ignoring", 2.5))}, "peak": {"plain": 2, "ignoring": 3}}
    for c in (False, True)
]  # fmt: skip

FUNCTIONS = [
    {"function": name, "elements": [1, 2, 3_000],
     "contaminated": [[0.001, 0.002], [0.01, 0.01 * middle], [0.1, 0.1 * large]], "clean": [[1, 1], [1, 1], [1, 1.1]]}
    for name, middle, large in (*((f"f{n}", 1, 1) for n in range(10)), ("grows", 2, 4), ("second", 3, 2))
]  # fmt: skip

COSTS = {"torch": "2", "machine": "m", "rows": ROWS, "compiled": COMPILED, "functions": FUNCTIONS}


def cells(html):
    return [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)]


def test_each_directive_draws_its_records():
    assert [name for name in DRAWN if "<" not in drawn(Project(ROOT), name)] == []


def test_costs_are_shown_as_ratios():
    html = costs_shown.shown(COSTS)
    found = cells(html)
    assert found[found.index("a model") :][:4] == ["a model", "2,000.0", "1.5", "1.5"]  # backward, 3 against 2
    assert "layer takes 1.2 times as long as plain" in html and "The first 1 models are ordinary" in html
    assert "at most 1.2 times plain PyTorch's, and in compiled layers at most 1.5 times" in html
    assert "takes 0.7 times as long as" in html and "masked</code> takes 1.3 times as long" in html  # 2 and 4, ours 3
    assert costs_shown.cost(COSTS, "ordinary").startswith("Backward takes 1.5 times as long, and 1.5 times if half")
    assert html.count("a model") == 1 and "a tiny &lt;model&gt;" in html
    gpu = {"device": "H", "costs": [dict(zip(costs_shown.STATES, of, strict=True)) for of in ((1.2, 3), (1.7, 4))]}
    said = costs_shown.in_short(COSTS, gpu)
    assert "an ordinary model takes 1.5 times as long as plain" in said
    assert "gradient penalty take 5.0 times as long, and 6.0 times as long with NaN rows" in said
    assert "take up to 1.1 times as long with all numbers finite (second), and up to 4.0 times" in said
    assert "takes 1.3 times as long on a CPU" in said and "1.2 to 1.7 times as long, and 3.0 to 4.0 times" in said


def test_functions_are_shown_from_the_slowest_on():
    html = costs_shown.by_function(COSTS)
    assert cells(html)[3:6] == ["median of all", "1.0 / 1.0 / 1.1", "2.0 / 1.0 / 1.0"]
    assert cells(html)[6:9] == ["grows", "1.0 / 1.0 / 1.1", "2.0 / 2.0 / 4.0"]
    assert cells(html)[9] == "second" and len(cells(html)) == 3 * (2 + costs_shown.SLOWEST)
    assert "In the median of 12 functions with" in html and "an error" not in html
    assert "multiple of <code>grows</code> (with one NaN) grows by more than a fifth." in html
    fast = {**FUNCTIONS[0], "clean": [[1, 0.7], [1, 1], [1, 1]], "contaminated": 3 * [[1, 0.5]]}
    said = costs_shown.by_function({"functions": [fast]})
    assert "The least multiple is 0.7, so these times have an error of at least 0.3" in said
    assert "no multiple grows" in said


def swept(*rows):
    """What is recorded of these operators: their sums, and the rows of those that are contaminated."""
    totals = {key: sum(row[key] for row in rows) for key, value in rows[0].items() if isinstance(value, int)}
    told = [row for row in rows if row["contaminated"]]
    return {"torch": "2", "operators": len(rows), "totals": totals, "rows": told}


def row(operator, samples, contaminated, fixed, **others):
    counts = {"samples": samples, "contaminated": contaminated, "fixed": fixed, "broken": 0, "crashed": 0}
    return {"operator": operator, **counts, "left_out": 0, "without_rule": [], "not_fixed": {}, **others}


def test_a_watched_step_is_measured_by_one_that_nobody_watches():
    seconds = {"plain": 2.0, "detect_anomaly": 5.0, "explain": 3.0, "on_failure": 2.1}
    failed = {"case": "a <bad> net", "seconds": {"plain": 0.002, "ignoring": 0.005, "explain": 0.023}}
    small = {"case": "small", "seconds": {"plain": 0.001, "ignoring": 0.001, "explain": 0.003}}
    content = {"torch": "2", "machine": "m", "watched": [{"case": "a <net>", "seconds": seconds}]}
    content["failing"] = [small, failed]
    html = costs_shown.watching(content)
    found = cells(html)
    assert found[found.index("a &lt;net&gt;") :][:4] == ["a &lt;net&gt;", "2.5", "1.5", "1.1"]
    assert "took 3 ms instead of 1 ms (small), and the slowest took 23 ms instead of 2 ms (a &lt;bad&gt; net)" in html


def test_fixed_lists_contaminated_operators_and_counts_all():
    rows = [
        row("exp", 4, 2, 1, not_fixed={"no end": 1}),
        row("neg", 6, 0, 0, left_out=3),
        row("log", 2, 2, 2, crashed=1),
    ]
    html = fixed.shown(swept(*rows))
    assert "3 of 4 contaminated samples are fixed (75.0%), and 0 of 12 samples are broken" in html
    assert "Of 3 operators, 1 have samples that are not fixed, 1 have only fixed ones, and 1 have no" in html
    shares = [fixed._share(part, 20_000) for part in (19_877, 19_999, 20_000)]
    assert shares == ["99.4%", "99.9%", "100.0%"]  # never rounded up to all
    assert "Why 1 samples are not fixed" in html and "the process dies in one of" in html
    assert "3 samples of the database were left out, because they are too large." in html
    found = cells(html)
    assert found[3:5] == ["no end", "1"] and found[5].endswith("Operators: exp.")


@pytest.mark.parametrize(
    ("measure", "methods"),
    [
        (lambda: costs.measure(costs.CASES["where over exp, 10 elements"], True), "plain ignoring double where masked"),
        (
            lambda: costs.watched(costs.CASES["4-layer MLP, width 8, batch 4"]),
            "plain detect_anomaly explain on_failure",
        ),
        (lambda: costs.failing("one logarithm of 0"), "plain ignoring explain"),
    ],
)
def test_a_step_is_measured_by_every_method(monkeypatch, measure, methods):
    monkeypatch.setattr(costs, "SECONDS", 0)
    found = measure()
    assert " ".join(found) == methods
    halves = [each for took in found.values() for each in (took.values() if isinstance(took, dict) else [took])]
    assert all(0 < seconds < 10 for seconds in halves)


def test_a_difference_between_methods_is_that_of_the_same_seeds():
    dropped, ours = [0.5, 0.7, 0.9], [0.4, 0.61, 0.79]
    rows = [
        {"missing": missing, "share": share, "method": method, "errors": ours if method == "ignoring" else dropped}
        for missing in ("targets", "inputs") for share in (0.0, 0.6) for method in penguins.METHODS
    ]  # fmt: skip
    rows = [row for row in rows if row["method"] != "plain PyTorch"]
    rows += [{"missing": "inputs", "share": 0.0, "method": "plain PyTorch", "errors": [None, None, 0.3]}]
    facts = {"made_with": {"torch": "2", "device": "cpu"}, "seeds": 3, "steps": 1, "tested": 9, "rows": rows}
    text = penguins.shown(facts)
    found = cells(text)
    assert "gave NaN in 2 of 3 runs" in text
    assert found[found.index("ignoring") :][:3] == ["ignoring", "0.600 ± 0.113", "−0.100 ± 0.006"]
    assert "<strong>−0.100 ± 0.006</strong>" in text
    assert found[found.index("drop rows") :][:3] == ["drop rows", "0.700 ± 0.115", "–"]
