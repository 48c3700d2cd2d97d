"""The table of the line to write gives only lines that a recorded test holds."""

import pytest
from scratch import ROOT

from tools.measure import decisions
from tools.project import Problem, read_record

RECORD = read_record(ROOT / "results" / "measured" / "setups.json")


def test_each_line_is_that_of_a_setup_that_a_test_holds():
    page = decisions.shown(RECORD)
    assert page.count("<pre>") == len(decisions.ROWS)
    assert "<pre>ignoring.backward(scaler.scale(loss))</pre>" in page


@pytest.mark.parametrize("change", [{"fixes": False}, {"holds_on": []}, {"setup": "renamed"}])
def test_a_line_that_no_test_holds_is_not_advised(change):
    rows = [row | change if row["setup"] == "FSDP2" else row for row in RECORD["rows"]]
    with pytest.raises(Problem, match="no recorded test holds: FSDP2$"):
        decisions.shown({"rows": rows})
