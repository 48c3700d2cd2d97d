"""What is changed in a source file, and what is not."""

import ast
from pathlib import Path

from scratch import ROOT

from tools.measure.mutations import Mutants


def changes(text):
    mutants = Mutants(text)
    return [(m.before, m.after) for m in map(mutants.mutant, range(len(mutants)))]


def test_decorated_functions_and_what_stands_outside_of_functions_are_changed_too():
    assert changes("LIMIT = 3\n@rule\ndef f(a):\n    return a < 1\n") == [
        ("LIMIT = 3", "LIMIT = None"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("return a < 1", "return a <= 1"),
        ("return a < 1", "return a < 2"),
    ]


def test_a_table_of_names_loses_each_of_them():
    lost = [after for _, after in changes('function("Amax Amin", selects=True)\n')]
    assert {'function("Amin", selects=True)', 'function("Amax ", selects=True)'} <= set(lost)
    table = Mutants('function(\n    """\n    Amax\n    Amin Sort\n    """\n)\n')
    names = [" ".join(table.mutant(number).code.split()) for number in range(len(table))]
    assert names[-3:] == [f'function( """ {left} """ )' for left in ("Amin Sort", "Amax Sort", "Amax Amin")]
    assert 'fail("such page")' not in [after for _, after in changes('fail("No such page")\n')]


def test_a_constant_table_loses_each_of_its_texts():
    lost = {after for _, after in changes('KINDS = ("a", "b", "c")\n')}
    assert {'KINDS = ("b", "c")', 'KINDS = ("a", "c")', 'KINDS = ("a", "b", )'} <= lost


def test_types_and_imports_are_left_alone():
    assert changes("from a import b\nimport c\ndef f(x: Literal[1]) -> Literal[2]: ...\n") == []


def test_each_mutant_is_the_file_with_one_other_place():
    text = (ROOT / "src" / "helpers" / "reference.py").read_text(encoding="utf-8")
    mutants = Mutants(text)
    assert len(mutants) > 20
    lines = text.splitlines()
    for number in range(0, len(mutants), 7):
        mutant = mutants.mutant(number)
        ast.parse(mutant.code)
        assert mutant.before != mutant.after and mutant.code != text
        assert lines[mutant.line - 1].strip() == mutant.before.splitlines()[0].strip()
        assert mutant.code.splitlines()[: mutant.line - 1] == lines[: mutant.line - 1]


def test_rules_have_mutants():
    rules = Path(ROOT / "src" / "zero_or_nan" / "ignoring" / "operators" / "reductions.py")
    mutants = Mutants(rules.read_text(encoding="utf-8"))
    befores = (mutants.mutant(number).before for number in range(len(mutants)))
    assert any("anywhere(grad.mask, dim, keepdim)" in before for before in befores)
