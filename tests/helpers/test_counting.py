"""What of a function's input counts: shown for readers, and told by two witnesses."""

import math
from html import unescape

import torch

from helpers import counting, what_counts

relu = ("relu(y)", torch.relu, "below <0>", [2.0, 3.0, -1.0], [-5.0, -math.inf])
exp = ("exp(y)", torch.exp, "anything", [2.0, 3.0, 1.0], [0.5])
zero = ("y * 0", lambda y: y * 0, "times 0", [2.0, 3.0, 1.0], [math.nan])


def test_an_entry_that_no_other_value_tells_of_is_used_by_its_cotangent():
    same = ("2 y", lambda y: 2 * y, "the same number", [2.0, 1.0], [1.0])
    used, counts = what_counts([relu, exp, zero, same])
    assert used.tolist() == counts.tolist() == [False, True, True, True]


def test_the_table_shows_the_other_values_and_both_cotangents():
    judged = [counting._judge(row) for row in (relu, exp)]
    shown = unescape(counting._table(judged).html())
    assert "What counts, row by row" in shown and shown.count("<tr") == 3
    assert [unescape(cell) for cell in judged[0].cells()] == [
        "<code>relu(y)</code><br>below <0>",
        "-5, -inf",
        "same bits",
        '<span class="zn-zero">0</span>',
        '<span class="zn-masked">--</span>',
        "ignored",
    ]
    finite = '<span class="zn-finite">2.7183</span>'
    assert judged[1].cells()[1:] == ["0.5", "changes", finite, finite, "used"]


def test_results_of_another_shape_are_other_results_and_nan_is_the_same_as_nan():
    picked = ("y[y > 0]", lambda y: y[y > 0], "chosen by its value", [2.0, 1.0], [-1.0])
    undefined = ("log(y)", lambda y: (0 * y).log() * math.nan, "NaN", [2.0, 1.0], [3.0])
    assert what_counts([picked])[0].tolist() == what_counts([undefined])[0].tolist() == [True]
    assert counting._same(torch.tensor([math.nan, -0.0]), torch.tensor([math.nan, 0.0]))
    assert not counting._same(torch.tensor([math.nan]), torch.tensor([1.0]))
