"""What of a function's input counts: shown for readers, and told by two witnesses."""

import math
from html import unescape

import torch

from helpers import counting

relu = ("relu(y)", torch.relu, "below <0>", [2.0, 3.0, -1.0], [-5.0, -math.inf])
exp = ("exp(y)", torch.exp, "anything", [2.0, 3.0, 1.0], [0.5])
zero = ("y * 0", lambda y: y * 0, "times 0", [2.0, 3.0, 1.0], [math.nan])


def test_the_table_shows_the_other_values_and_both_cotangents():
    judged = [counting._judge(row) for row in (relu, exp)]
    shown = unescape(counting._table(judged).html())
    assert "What counts, row by row" in shown and shown.count("<tr") == 3
    assert [unescape(cell) for cell in judged[0].cells()] == [
        "<code>relu(y)</code><br>below <0>",
        "-5, -inf<br>same bits",
        '<span class="zn-zero">0</span>, <span class="zn-masked">--</span><br>ignored',
    ]
    assert judged[1].cells()[1:] == [
        "0.5<br>changes",
        '<span class="zn-finite">2.7183</span>, <span class="zn-finite">2.7183</span><br>used',
    ]
