"""Masked rows in Flex attention and in a Hugging Face model: the record, and how a difference is said."""

from math import nan

import pytest
import torch
from scratch import ROOT

from tools.measure import attention
from tools.measure.attention import FLEX, LLAMA, add, flex, llama, off, recorded
from tools.project import read_record


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measure"), [(FLEX, flex), (LLAMA, llama)])
def test_the_record_is_what_this_pytorch_does(name, measure):
    if name == LLAMA:
        pytest.importorskip("transformers")
    content = read_record(ROOT / "results" / "measured" / "attention.json")
    tables = recorded(content).get(torch.__version__.partition("+")[0])
    if tables is None or not tables[name]:
        pytest.skip("this PyTorch isn't recorded")
    assert measure() == tables[name]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([[1.0], [2.0]], "0"),
        ([[1.000001], [2.0]], "0"),
        ([[1.0], [2.5]], "0.5"),
        ([[1.0], [nan]], "NaN"),
        ([[nan], [2.5]], "NaN"),
        ([[1.0], None], "NaN"),
    ],
)
def test_a_difference_in_words(found, said):
    tensors = [None if each is None else torch.tensor(each) for each in found]
    assert off(tensors, [torch.tensor([1.0]), torch.tensor([2.0])]) == said


def test_a_release_is_added_beside_the_others_and_drawn(project):
    model = [["eager", "NaN", "NaN", "NaN", "NaN"]]
    add(project, "2.10.0", {FLEX: [["block_mask", "0", "0"]], LLAMA: model})
    add(project, "2.9.0", {FLEX: [["block_mask", "0", "raises <X>"]], LLAMA: []})
    content = read_record(project.results / "measured" / "attention.json")
    assert content["releases"] == ["2.9.0", "2.10.0"]
    assert recorded(content)["2.9.0"] == {FLEX: [["block_mask", "0", "raises <X>"]], LLAMA: []}
    drawn = attention.shown(content)
    assert 'raises &lt;X&gt; <span class="zn-note">(2.9)' in drawn
    assert "PyTorch 2.9 and 2.10" in drawn and "PyTorch 2.10</caption>" in drawn
