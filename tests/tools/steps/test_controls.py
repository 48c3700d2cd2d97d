"""The build runs the controls of the site on the samples that cells computed, and names a control that differs."""

import html
import json
import shutil

import pytest
from scratch import ROOT

from tools.steps import controls

SCRIPT = ROOT / "theme" / "static" / "control.js"
SAMPLES = [
    {"precision": precision, "a": "2", "autograd": "-0.25", "−1/a²": "-0.25", "difference": "0", "ulps": "0"}
    for precision in ("float32", "float64")
]
PAGE = f'<div data-control="round-off" data-samples="{html.escape(json.dumps(SAMPLES))}"></div>'


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("-round(inverse * inverse)", "round(inverse * inverse)", "the control round-off in control.js computes other"),
        ("difference: ", "distance: ", "the control round-off in control.js computes other"),
        ('"round-off": {', '"rounded": {', "the control round-off in control.js computes other"),
        ("const single", "const const", "control.js does not run in node"),
    ],
)
def test_a_control_that_computes_other_numbers_than_its_cell_is_named(tmp_path, old, new, said):
    script = tmp_path / "control.js"
    source = SCRIPT.read_text(encoding="utf-8")
    assert old in source
    script.write_text(source.replace(old, new, 1), encoding="utf-8")
    found = controls.wrong_controls(script, ["<p>No control.</p>", PAGE])
    assert len(found) == bool(said) and all(text.startswith(said) for text in found)


def test_without_node_the_build_says_that_controls_were_not_compared(monkeypatch, capsys):
    monkeypatch.setattr(controls.shutil, "which", lambda name: None)
    assert controls.wrong_controls(SCRIPT, [PAGE]) == []
    assert "control.js was NOT compared" in capsys.readouterr().out
