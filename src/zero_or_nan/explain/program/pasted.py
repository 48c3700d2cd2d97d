"""The program with a remedy pasted in, for another run. The file itself does not change.

The file is compiled with the remedy, and its functions get the new code while the program runs again. So the code that
runs is the code that the report prints. Code outside functions has already run, and can't run again.
"""

from __future__ import annotations

import gc
import itertools
import linecache
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType


class Pasted:
    """A file with other code in place of one or several lines.

    Args:
        filename, line, until: the file, and the first and the last line to replace.
        code: the code that replaces these lines.

    Attributes:
        lines: the lines of the file with the code in it.
        shift: how many more lines the file has with the code in it.
        decorates: whether the code has a decorator.
    """

    def __init__(self, filename: str, line: int, code: str, until: int | None = None) -> None:
        self.filename, self.line, self.until = filename, line, until or line
        lines = linecache.getlines(filename)
        old = lines[line - 1 : self.until]
        indent = "".join(each[: len(each) - len(each.lstrip())] for each in old[:1])
        new = [f"{indent}{each}\n" for each in code.splitlines()]
        self.lines = [*lines[: line - 1], *new, *lines[self.until :]]
        self.shift = len(new) - len(old)
        self.decorates = any(each.lstrip().startswith("@") for each in new)

    def compiled(self) -> CodeType:
        """The code of the file.

        Raises:
            SyntaxError: if the code does not fit in this place.
        """
        return compile("".join(self.lines), self.filename, "exec")

    def line_before(self, line: int) -> int:
        """The number of a line in the original file, for a line of the file with the code in it."""
        return line if line <= self.line else max(self.line, line - self.shift)

    @contextmanager
    def imported(self) -> Iterator[None]:
        """While entered, a module that is imported from the file gets the new code, and reports show its lines."""
        get_code, code = SourceFileLoader.get_code, self.compiled()

        def get(loader: SourceFileLoader, name: str) -> CodeType | None:
            is_this = os.path.abspath(loader.path) == os.path.abspath(self.filename)
            return code if is_this else get_code(loader, name)

        SourceFileLoader.get_code = get  # type: ignore[assignment, method-assign]
        linecache.cache[self.filename] = len("".join(self.lines)), None, self.lines, self.filename
        try:
            yield
        finally:
            SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
            linecache.cache.pop(self.filename, None)

    @contextmanager
    def running(self) -> Iterator[bool]:
        """While entered, the functions of the file run its new code. Yields whether a function contains the line.

        A decorator is in no function: it changes the function itself.
        """
        before: list[tuple[FunctionType, CodeType]] = []
        known = linecache.cache.get(self.filename)
        try:
            codes = {self._key(code): code for code in _each_in(self.compiled())}
            for function in _functions_of(self.filename):
                old = function.__code__
                code = codes.get((old.co_qualname, old.co_firstlineno, old.co_freevars))
                if code is not None:
                    before.append((function, old))
                    function.__code__ = code
            text = "".join(self.lines)
            linecache.cache[self.filename] = len(text), None, self.lines, self.filename
            yield not self.decorates and any(self._has_line(function.__code__) for function, _ in before)
        finally:
            for function, old in before:
                function.__code__ = old
            linecache.cache.pop(self.filename, None)
            if known is not None:
                linecache.cache[self.filename] = known

    def _key(self, code: CodeType) -> tuple[str, int, tuple[str, ...]]:
        return code.co_qualname, self.line_before(code.co_firstlineno), code.co_freevars

    def _has_line(self, code: CodeType) -> bool:
        new = range(self.line, self.until + self.shift + 1)
        return any(line in new for each in _each_in(code) for _, _, line in each.co_lines())


def _each_in(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those inside of it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _each_in(const)


def _functions_of(filename: str) -> list[FunctionType]:
    """The functions of a file. No list of all objects may outlive the call that makes it, as in `all_modules`."""
    every = itertools.chain.from_iterable(map(gc.get_objects, (None,)))
    return [each for each in every if type(each) is FunctionType and each.__code__.co_filename == filename]
