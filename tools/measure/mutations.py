"""The mutants of a source file: mutmut's mutations, at every place in the file.

mutmut itself skips code that it can't wrap in a function. That includes decorated functions, such as all rules of the
library, and code outside of functions, such as the records of forward functions. Therefore this module applies mutmut's
mutations one by one, and each gives a source file. Two further mutations remove one name from a table.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import libcst as cst
from mutmut.mutation.mutators import mutation_operators


@dataclass(frozen=True)
class Mutant:
    """One change of a source file.

    Attributes:
        code: the whole file with the change.
        line: the first line that differs, counted from 1.
        before: the lines that the change replaces, without the indentation that they share.
        after: the lines that replace them.
    """

    code: str
    line: int
    before: str
    after: str


class Mutants:
    """All mutants of a source file, in the order of the file.

    >>> mutants = Mutants("def lower(a, b):\\n    return a < b\\n")
    >>> [mutant.after for mutant in map(mutants.mutant, range(len(mutants)))]
    ['return a <= b']
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._module = cst.parse_module(text).deep_clone()  # a node that occurs twice could not be replaced
        places = _Places()
        self._module.visit(places)
        self._changes = places.changes

    def __len__(self) -> int:
        return len(self._changes)

    def mutant(self, number: int) -> Mutant:
        """The mutant with this number. Numbers start at 0."""
        node, changed = self._changes[number]
        code = cst.ensure_type(self._module.deep_replace(node, changed), cst.Module).code
        old, new = self.text.splitlines(), code.splitlines()
        start = _common(old, new)
        end = _common(old[start:][::-1], new[start:][::-1])
        return Mutant(code, start + 1, _cut(old, start, end), _cut(new, start, end))


class _Places(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Annotation, cst.Import, cst.ImportFrom)):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                self.changes += [(node, changed) for changed in operator(node)]
        return True


def _one_name_less(node: cst.Call) -> Iterable[cst.Call]:
    """A call such as `function("Amax Amin", ...)`, each time without one of the names in its string."""
    for number, argument in enumerate(node.args):
        if isinstance(argument.value, cst.SimpleString):
            text = argument.value.value
            words = list(re.finditer(r"\b[A-Z]\w*\s*", text))
            if len(words) > 1 and not re.sub(r"\b[A-Z]\w*\b", "", text).strip("\"'\n "):
                for word in words:
                    value = argument.value.with_changes(value=text[: word.start()] + text[word.end() :])
                    changed = argument.with_changes(value=value)
                    yield node.with_changes(args=[*node.args[:number], changed, *node.args[number + 1 :]])


def _one_element_less(node: cst.Tuple | cst.List | cst.Set) -> Iterable[cst.CSTNode]:
    """A list of more than two constant strings, each time without one of them."""
    elements = node.elements
    if len(elements) > 2 and all(isinstance(element.value, cst.SimpleString) for element in elements):
        for number in range(len(elements)):
            yield node.with_changes(elements=[*elements[:number], *elements[number + 1 :]])


OPERATORS: list[tuple[type[cst.CSTNode], Callable[[Any], Iterable[cst.CSTNode]]]] = [
    *mutation_operators,
    (cst.Call, _one_name_less),
    *((kind, _one_element_less) for kind in (cst.Tuple, cst.List, cst.Set)),
]
"""The kinds of nodes that are mutated, and the function that makes the mutations."""


def _common(old: list[str], new: list[str]) -> int:
    """How many lines at the start are equal."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _cut(lines: list[str], start: int, end: int) -> str:
    """The lines from `start` up to `end` from the end, without the indentation that they share."""
    return textwrap.dedent("\n".join(lines[start : len(lines) - end]))
