"""The boxes *In JAX*: they show what was recorded, their words agree with it, and the command writes both."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scratch import ROOT

from tools.measure.records import read
from tools.project import Project
from tools.versions import isolated
from tools.versions.jax import BOX, boxes, jax

PROJECT = Project(ROOT)
STOPS = r"debug_nans, in the (?:loss|sum): invalid value \(nan\) encountered in"
SAID = {
    "where-over-exp": {
        "is NaN in JAX too": r"one where: \[0\.36787945 +nan\]",
        "second `where` fixes it": r"two wheres: \[0\.36787945 0\. +\]",
        "operation of backward that made the NaN: a product": r"in backward: .* encountered in mul$",
    },
    "where-over-division": {
        "with and without `jit`": r"one where: \[ nan 0\.25\] in jit: \[ nan 0\.25\]",
        "the same fix works": r"two wheres: \[0\. +0\.25\]",
        "also stops in the loss, although its value is right": rf"the loss: 1\.5\n(?:.*\n)?{STOPS} div$",
    },
    "nansum-nanmean": {
        "the gradient of `nansum` after a product is NaN": "nansum: nan$",
        "`sum` with its argument `where` does not help": r"sum\(where=ok\): nan$",
        "stops at this product in the forward pass": rf"clean a: 3\.0\n(?:.*\n)?{STOPS} mul$",
    },
    "division-under-a-mask": {
        "a mask on the quotient comes too late": r"\A\[nan  1\.\]$",
        "a mask before the division gives the right gradient. But in `jit`, JAX refuses a computed mask": (
            r"^\[0\. 1\.\]\n  in jit: Array boolean indices must be concrete"
        ),
        "There, write two `where`": r"^\[0\. 1\.\]\n  in jit: \[0\. 1\.\]$",
    },
    "slicing-nan": {
        "a finite loss and a NaN gradient": r"slice after: 10\.0 \[nan nan\]",
        "the same fix works": r"slice before: 10\.0 \[4\. 6\.\]",
        "stops at the product in the forward pass": rf"{STOPS} dot_general$",
    },
    "float-round-off": {
        "uses the power a⁻² (`integer_pow`)": "^div integer_pow mul mul neg$",
        "same bits as the school formula in every draw": r"unlike -1 / a\*\*2: 0 of",
        "About half of the draws differ": r"unlike -\(1 / a\) \* \(1 / a\): 5[0-4]\d,\d{3} of 1,000,000",
    },
    "backward-gradient-argument": {
        "refuses a result with several elements": "Gradient only defined for scalar-output functions",
        "the gradient of the last line contains NaN": r"\[-1\. nan\]\Z",
    },
    "losses-and-geometry": {
        "formula by hand breaks at the same logit": "BCE by hand: inf nan",
        "`log_sigmoid` gives the right gradient": r"BCE: 20\.0 1\.0",
        "`rel_entr` is also right if a masked logit has the target 0": r"\[ 0\. +0\.25 -0\.25\]",
        "gradient of a norm at 0 is NaN": r"norm of zeros: \[nan nan\]",
    },
    "attention": {
        "is NaN in JAX too, and so is the gradient of every value": r"softmax of -inf: \[1\.5 nan\] \[nan nan nan\]",
        "the row is 0": r"softmax\(where=\): \[1\.5 0\. \] \[0\.5 0\.5 0\. \]",
        "the mean of all values": r"dot_product_attention: \[1\.5 4\. \]",  # of 1, 2 and 9
    },
    "undefined": {
        "same infinite slopes of `sqrt` and `arccos`": "sqrt: inf arccos: -inf",
        "NaN for its norm of zeros and its `std` of equal elements": (
            r"^norm: \[nan nan\](?:.*\n)std of equal elements: \[nan nan\]"
        ),
        "The slope of `hypot` is finite": r"hypot: 0\.5$",
        "The norm with two `where`s gets 0, even in a gradient penalty": (
            r"two wheres: \[0\. 0\.\]\ngradient penalty: \[0\. 0\.\]"
        ),
    },
    "mixed-precision": {
        "the loss is infinite, and the softmax is NaN": r"loss: inf 90112\n.* 90000\.0\nsoftmax: \[nan nan\]",
        "If a gradient underflows to 0 in float16, multiply the loss by a scale": (
            r"gradient: 0\.0\nwith a scale: 2\.00\d+e-08"
        ),
    },
    "six-spellings-of-max": {
        "`abs` has the slope 1 at 0": r"\(y \+ abs\(y\)\) / 2: 1\.0,",
        "`clip` has 0.5": r"clip: 0\.5,",
        "a slope of 0 becomes NaN here too, and every other": (
            r": 0\.0, of sqrt: nan\n(?:.*: [01]\.[05], of sqrt: inf\n?){3}\Z"
        ),
    },
}
"""By page, what the words of its box say, and a pattern of the recorded output that says the same."""


def test_every_box_shows_a_short_program_and_what_was_recorded_of_it():
    shown = boxes(PROJECT)
    assert shown == read(PROJECT, "jax"), "run make jax"
    assert shown.keys() == SAID.keys()
    for box in shown.values():
        lines = list(filter(None, box["code"].splitlines()))
        assert len(lines) <= 12 and max(map(len, lines)) <= 78


@pytest.mark.parametrize("name", SAID)
def test_the_words_of_a_box_agree_with_the_recorded_output(name):
    printed = read(PROJECT, "jax")[name]["printed"].strip()
    words = " ".join((ROOT / "chapters" / f"{name}.md").read_text(encoding="utf-8").split())
    for said, pattern in SAID[name].items():
        assert said in words and re.search(pattern, printed, re.MULTILINE), (said, printed)


def test_the_command_fills_in_the_boxes_unless_a_program_fails(tmp_path, monkeypatch, capsys):
    page, box = tmp_path / "one.md", {"code": "print({1: 2})\n", "jax": "", "printed": ""}
    page.write_text(f"# One\n\n{BOX.format(**box)}\nWords.\n\n</details>\n")
    (tmp_path / "_config.yml").write_text("{}")
    (tmp_path / "_toc.yml").write_text("{format: jb-book, root: one}")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(isolated, "DISK", 0)
    packages = []

    def install(self, *names):
        self.python = Path(sys.executable)
        packages.extend(names)

    monkeypatch.setattr(isolated.Isolated, "install", install)
    project = Project(tmp_path)
    assert jax(project) == 0
    (version,) = (each.removeprefix("jax==") for each in packages)
    assert read(project, "jax") == boxes(project) == {"one": {**box, "jax": version, "printed": "{1: 2}\n"}}
    assert page.read_text().endswith("```\n\nWords.\n\n</details>\n")

    page.write_text(page.read_text().replace("print({1: 2})", "print(missing)"))
    before = page.read_text(), read(project, "jax")
    assert jax(project) == 1 and (page.read_text(), read(project, "jax")) == before
    assert "the program of one failed with NameError: name 'missing' is not defined" in capsys.readouterr().out
