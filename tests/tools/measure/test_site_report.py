from types import SimpleNamespace

import pytest

from tools.measure import site_report as report
from tools.measure.browser import missing
from tools.project import Problem


def test_a_site_that_is_not_built_is_not_measured(tmp_path):
    with pytest.raises(Problem, match="make book"):
        report.site_report(SimpleNamespace(site=tmp_path, root=tmp_path))


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "index.html").touch()
    monkeypatch.setenv("CHROME_PATH", "/usr/bin/true")
    with pytest.raises(Problem, match="not installed: axe-core, lighthouse; `make browser`"):
        report.site_report(SimpleNamespace(site=tmp_path, root=tmp_path))
    monkeypatch.delenv("CHROME_PATH")
    monkeypatch.setenv("PATH", "")
    assert missing(tmp_path).startswith("not installed: Chromium, axe-core, lighthouse;")


def test_the_median_of_three_runs_counts(tmp_path, monkeypatch):
    runs = iter([0.7, 0.9, 0.8])
    monkeypatch.setattr(report, "_lighthouse", lambda *_: {"scores": {"performance": next(runs)}})
    assert report.lighthouse(tmp_path, "http://here", "mobile") == {"scores": {"performance": 0.8}}


def test_a_line_has_every_score_and_what_cost_points():
    found = {"scores": {"performance": 0.5, "seo": 1.0}, "below one": {"font-size": 0.25}}
    assert report._scores("a, mobile", found) == "a, mobile: performance 0.50  seo 1.00  (font-size 0.25)"
