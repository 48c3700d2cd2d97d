"""What readers see, whole: the folder `printed` has a script for each kind of report, and below it the report.

If you change what a report says, run this file once with WRITE_PRINTED=1, and read the difference before you commit it.
"""

import linecache
import os
import re
import runpy
from pathlib import Path

import pytest

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError
from zero_or_nan.explain.report.remedies import PAGES

PRINTED = Path(__file__).parent / "printed"
SCRIPTS = sorted(path.stem for path in PRINTED.glob("*.txt"))
RULE = "\n" + "-" * 78 + "\n"


@pytest.fixture
def explained(tmp_path, monkeypatch):
    """The report on a script by its name. The script is `train.py` in the current folder."""
    monkeypatch.chdir(tmp_path)

    def explained(name):
        source, _, _ = (PRINTED / f"{name}.txt").read_text(encoding="utf-8").partition(RULE)
        (tmp_path / "train.py").write_text(source)
        linecache.clearcache()
        try:
            with explain() as report:
                runpy.run_path("train.py")
        except NotFiniteError as failure:  # of a step under `on_failure`
            return failure.report
        return report

    return explained


def expect(path, text, before=""):
    """Compare a text with a recorded one. The folder of the script and the address of the pages are left out."""
    text = before + re.sub(r"[^\"\s]*/(?=train\.py)", "", text).replace(PAGES, "") + "\n"
    if os.environ.get("WRITE_PRINTED"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_report_as_text(name, explained):
    path = PRINTED / f"{name}.txt"
    source, rule, _ = path.read_text(encoding="utf-8").partition(RULE)
    expect(path, str(explained(name)), source + rule)


@pytest.mark.parametrize("name", ["contaminated", "several_origins"])
def test_a_report_as_html(name, explained):
    html = re.sub(r" style='[^']*'", "", explained(name)._repr_html_())
    expect(PRINTED / f"{name}.html", html.replace("><", ">\n<"))


def test_a_report_as_json(explained):
    expect(PRINTED / "contaminated.json", explained("contaminated").to_json())
