"""What is changed in the code of a cell, and what is not."""

import ast

import pytest
from scratch import ROOT

from tools.measure.mutations import OPERATORS, mutations


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 2", ["x = 3"]),
        ("x = 1.5", ["x = 4.0"]),
        ("x = False", ["x = True"]),
        ("x = 'a'", ["x = 'XXa'"]),
        ("x = -a", ["x = a"]),
        ("x = not a", ["x = a"]),
        ("x -= a", ["x += a"]),
        ("x = (a) < (b) == c", ["x = (a) >= (b) == c", "x = (a) < (b) != c"]),
        ("x = a and b and c", ["x = a or b and c", "x = a and b or c"]),
        ("f(a, *b, c=d)", ["f(None, *b, c=d)", "f(a, *b, c=None)"]),
        ("x = f'{1 + 1}'", []),
        ("import a\nx = a.b", []),
    ],
)
def test_each_kind_of_change(code, expected):
    assert mutations(code) == expected


def test_every_operator_of_python_is_replaced_or_known_to_be_left_alone():
    kinds = [kind for base in (ast.operator, ast.boolop, ast.cmpop) for kind in base.__subclasses__()]
    assert set(kinds) - set(OPERATORS) == {ast.LShift, ast.RShift, ast.BitXor, ast.IsNot, ast.NotIn}


def test_every_other_line_stays_where_it_is():
    # A call over several lines, and columns that aren't the same in characters and in bytes.
    code = "é = f(\n    g(\n        a\n    ),\n)\ny = 'é' + b\n"
    assert mutations(code) == [
        "é = f(\n    None\n\n,\n)\ny = 'é' + b\n",
        "é = f(\n    g(\n        None\n    ),\n)\ny = 'é' + b\n",
        "é = f(\n    g(\n        a\n    ),\n)\ny = 'é' - b\n",
        "é = f(\n    g(\n        a\n    ),\n)\ny = 'XXé' + b\n",
    ]


def test_each_mutation_of_a_real_file_is_code_that_differs():
    text = (ROOT / "src" / "helpers" / "reference.py").read_text(encoding="utf-8")
    found = mutations(text)
    assert len(found) > 20 and text not in found
    for code in found:
        ast.parse(code)
        assert code.count("\n") == text.count("\n")
