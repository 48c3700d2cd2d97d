"""The user's functions in one file, and which function calls which.

Only facts that the file shows for certain count: a function is found only if its name is defined once in the file, and
if the name is used once, in a call.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .code import Place
from .source import closed, looks_up_dtype, parsed_file

_Function = ast.FunctionDef | ast.AsyncFunctionDef

_OF_SHAPES = re.compile(r"\.(shape|size|ndim|dim|numel|dtype|device)\b|\blen\(| is (not )?None|'")
"""Matches in a comparison that does not depend on numbers: a shape, a dtype, a string, or None."""

_STEPS = frozenset(
    "eq ne lt le gt ge equal isclose allclose bool sign heaviside floor ceil round trunc nonzero argmax argmin argsort "
    "sort topk searchsorted isnan isinf isfinite".split()
)
"""Functions whose result may jump if a number changes a little."""

_ROUNDS = frozenset("floor ceil round trunc".split())
"""Those of them that round."""


class OnlyCall(NamedTuple):
    """The only call of a function in its file.

    Attributes:
        node: the call.
        names: the variables that get its results, as in `a, b = f(x)`; empty if the results are not unpacked.
        filename: the file.
        arguments: by parameter of the function, the argument.
        function: the function that is called.
        functions: this function and all functions of the file that it calls, directly or not.
        around: the lines of the function around the call, without the lines of inner functions.
    """

    node: ast.Call
    names: list[str]
    filename: str
    arguments: Mapping[str, ast.expr]
    function: _Function
    functions: list[_Function]
    around: set[int]

    def has(self, place: Place) -> bool:
        """Whether the code of a place runs during the call."""
        return place.filename == self.filename and any(_spans(each, place.line) for each in self.functions)

    def is_beside(self, place: Place) -> bool:
        """Whether the variables at a place are the same as at the call."""
        return place.filename == self.filename and place.line in self.around

    def parameters_of(self, name: str, place: Place) -> set[str]:
        """The parameters from which a variable at a place may have its value, if the call did not compute it."""
        inner = [each for each in self.functions if _spans(each, place.line)]
        return self._origins(inner[-1], name, []) if inner else set()

    def _origins(self, function: _Function, name: str, known: list[_Function]) -> set[str]:
        if function is self.function:
            return {name} & self.arguments.keys()
        if function in known:
            return set()
        found = set[str]()
        for caller in self.functions:
            for node in _own(caller):
                if isinstance(node, ast.Call) and _name(node.func) == function.name:
                    given = _bound(node, function).get(name)
                    if isinstance(given, ast.Name):
                        found |= self._origins(caller, given.id, [*known, function])
        return found

    @property
    def decides(self) -> bool:
        """Whether numbers may decide what it computes: its code compares more than shapes, or rounds."""
        nodes = [node for each in self.functions for node in ast.walk(each)]
        compared = [ast.unparse(node) for node in nodes if isinstance(node, ast.Compare)]
        return any(not _OF_SHAPES.search(each) for each in compared) or any(_name(node) in _STEPS for node in nodes)

    @property
    def rounds(self) -> bool:
        """Whether its code rounds numbers, which another digit may change by 1."""
        return any(_name(node) in _ROUNDS for each in self.functions for node in ast.walk(each))

    @property
    def reads_dtype(self) -> bool:
        """Whether its code looks something up by a dtype, as in `EPS[x.dtype]`."""
        return looks_up_dtype(node for each in self.functions for node in ast.walk(each))

    @property
    def until(self) -> int | None:
        """The number of its last line; None if the call is in one line."""
        return self.node.end_lineno if self.node.end_lineno != self.node.lineno else None

    def with_arguments(self, forms: Mapping[str, str], back: str = "") -> str:
        """The lines of the call with other arguments for some parameters, and a method after the call.

        They are empty if an argument has several lines, if a call in an argument would be duplicated, or if a method is
        needed after a call that returns several results.

        Args:
            forms: by parameter, the new argument, with {} or {0} for the old one.
            back: the name of the method.
        """
        begin, end = self.node.lineno, self.node.end_lineno or 0
        lines = [linecache.getline(self.filename, at).encode() for at in range(begin, end + 1)]
        if back and (_gives_several(self.function, self.functions) or re.match(rb"[\w\s.]*,[\w\s.,]*=", lines[0])):
            return ""
        edits = [(end, self.node.end_col_offset or 0, self.node.end_col_offset or 0, f".{back}()")] if back else []
        for parameter, form in forms.items():
            node = self.arguments[parameter]
            is_call = any(isinstance(each, ast.Call) for each in ast.walk(node))
            if node.lineno != node.end_lineno or is_call and form.count("{") > 1:
                return ""
            text = closed(lines[node.lineno - begin][node.col_offset : node.end_col_offset].decode())
            edits.append((node.lineno, node.col_offset, node.end_col_offset or 0, form.format(text)))
        for at, start, stop, text in sorted(edits, reverse=True):
            line = lines[at - begin]
            lines[at - begin] = line[:start] + text.encode() + line[stop:]
        first, *others = (line.decode().rstrip() for line in lines)
        indent = first[: len(first) - len(first.lstrip())]
        return "\n".join([first.lstrip(), *(line.removeprefix(indent) for line in others)])


def only_calls_around(place: Place) -> Iterator[OnlyCall]:
    """The only calls of functions during which the code of a place runs, from the inside out."""
    tree = parsed_file(place)
    nodes: list[Any] = [] if tree is None else [*ast.walk(tree)]
    functions = {node.name: node for node in nodes if isinstance(node, _Function)}
    names = [node.name for node in nodes if isinstance(node, (_Function, ast.ClassDef))]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    methods = {each.name for node in classes for each in node.body if isinstance(each, _Function)}
    named = [node for node in nodes if _name(node) in functions]
    # A method is an attribute. Any other function is a name: x.grad does not use a function `grad`.
    uses = [node for node in named if isinstance(node, ast.Attribute) is (_name(node) in methods)]
    used = [_name(node) for node in uses]
    calls = {_name(node.func): node for node in nodes if isinstance(node, ast.Call) and node.func in uses}
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    targets = {node.value: node.targets for node in assigned if _end(node) == _end(node.value)}  # no parentheses
    single = {name for name in calls if names.count(name) == used.count(name) == 1}
    found = []
    for name in single:
        inside = _called(functions[name], functions)
        others = {each.name for each in inside[1:]}
        lines = [node.lineno for node in uses if _name(node) in others]
        is_closed = all(any(_spans(each, line) for each in inside) for line in lines)
        node, function = calls[name], functions[name]
        is_inside = any(_spans(each, node.lineno) for each in inside)
        names = _names_in(targets.get(node, []))
        around = _lines_beside(node.lineno, [each for each in nodes if isinstance(each, _Function)], tree)
        call = OnlyCall(node, names, place.filename, _bound(node, function), function, inside, around)
        if is_closed and call.has(place) and not is_inside:
            found.append(call)
    yield from sorted(found, key=lambda call: len(call.functions))


def _name(node: ast.AST) -> str:
    """The name that an expression uses."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _lines_beside(line: int, functions: list[_Function], tree: Any) -> set[int]:
    """The lines whose innermost function is that of a line."""
    innermost = dict[int, _Function | None]()
    for each in sorted(functions, key=lambda each: each.lineno):  # an inner one begins after the one around it
        innermost |= dict.fromkeys(range(each.lineno, (each.end_lineno or 0) + 1), each)
    last = max((each.end_lineno or 0 for each in tree.body), default=0)
    return {at for at in range(1, last + 1) if innermost.get(at) is innermost.get(line)}


def _end(node: ast.stmt | ast.expr) -> tuple[int | None, int | None]:
    return node.end_lineno, node.end_col_offset


def _names_in(targets: list[ast.expr]) -> list[str]:
    """The names of the only target of an assignment, if it is a tuple of names."""
    parts = targets[0].elts if len(targets) == 1 and isinstance(targets[0], ast.Tuple) else []
    return [each.id for each in parts if isinstance(each, ast.Name)]


def _gives_several(function: _Function, functions: list[_Function]) -> bool:
    """Whether a function returns a tuple, a list or a dictionary, perhaps by a variable or by another function."""
    nodes = [*_own(function)]
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    names = {each.id for each in values if isinstance(each, ast.Name)}
    assigned = (node for node in nodes if isinstance(node, ast.Assign))
    values += [node.value for node in assigned if any(ast.unparse(each) in names for each in node.targets)]
    called = {_name(each.func) for each in values if isinstance(each, ast.Call)}
    others = [each for each in functions if each is not function]
    is_several = any(isinstance(each, (ast.Tuple, ast.List, ast.Dict)) for each in values)
    return is_several or any(_gives_several(each, others) for each in others if each.name in called)


def _spans(function: _Function, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or 0)


def _own(function: _Function) -> Iterator[ast.AST]:
    """The parts of a function that are in no other function."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, _Function)]


def _called(function: _Function, functions: Mapping[str, _Function]) -> list[_Function]:
    """A function, and those that it calls, and so on."""
    found = [function]
    for each in found:
        stored = {_name(node) for node in ast.walk(each) if isinstance(getattr(node, "ctx", None), ast.Store)}
        given = {node.arg for node in ast.walk(each) if isinstance(node, ast.arg)}
        names = {_name(node) for node in ast.walk(each)} - stored - given
        found += [other for name, other in functions.items() if name in names and other not in found]
    return found


def _bound(call: ast.Call, function: _Function) -> dict[str, ast.expr]:
    """By parameter, the argument of a call. What stands behind a star is left out, with all that follows it."""
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    if isinstance(call.func, ast.Attribute) and positional[:1] in (["self"], ["cls"]):
        del positional[0]
    starred = next((at for at, each in enumerate(call.args) if isinstance(each, ast.Starred)), len(call.args))
    return {
        **dict(zip(positional, call.args[:starred], strict=False)),
        **{each.arg: each.value for each in call.keywords if each.arg is not None},
    }
