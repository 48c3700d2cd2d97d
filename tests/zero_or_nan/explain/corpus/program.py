"""What a program of the corpus is: code that people write, and where its NaN or infinity is born.

    @program("undefined forward log", operands="0")
    def entropy_by_hand():
        '''One sentence: what is wrong, and why it is of this kind.'''
        ...
        loss = -(p * p.log()).sum()  # born
        loss.backward()

The text has the kind, the phase and the operator. The expected line is the one that ends with `# born`, read from the
source. A program with several origins has a text for each, and the marks `# born 1`, `# born 2`. `@program()` is a
clean program: nothing non-finite reaches its loss or a gradient.

A program takes no argument, prints nothing, warns of nothing, and gives the same bits each time: PyTorch's random
numbers have the seed 0. A program without a backward pass returns its result.

A program that was reduced from a public report also says what the thread found: the cause behind the line, and the fix.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

CAUSES = {
    "divergence": r"diverg",
    "the optimizer": r"optimi[sz]er",
    "uninitialized memory": r"uninitiali[sz]ed",
    "a checkpoint": r"checkpoint|state.dict|loaded",
    "a buffer": r"buffer|running",
    "a tie": r"\btie\b",
}
"""Causes that a report has to name, and how its text shows that it does. It names divergence for no other cause."""


@dataclass(frozen=True)
class Expected:
    """An origin that a report has to name.

    `operator` is the public name of the function or method that was called; of an `autograd.Function`, the name of its
    class. `module` is the qualified name of the innermost module that was running, from the outermost on. `entries`
    are the indices of the entries that were born: of the result going forward, of the gradient coming back. `operands`
    is a number that stands among what made them. None: not looked at.
    """

    kind: str
    phase: str
    operator: str
    module: str | None = None
    entries: tuple[tuple[int, ...], ...] | None = None
    operands: str | None = None


@dataclass(frozen=True)
class Program:
    """A program, and what is to be said of it: nothing, where it is clean.

    `thread` is the public thread that it is the essence of, as `repository#number`. `since` is the first PyTorch that
    it is right for. `cause` is the cause that the thread found, in the words of `CAUSES` if it is one of those.
    `remedy` is a pattern that a remedy has to match to agree with the fix of the thread. `fails` is a pattern of
    remedies that were tried and do not help.
    """

    run: Callable[[], Any]
    expected: tuple[Expected, ...]
    lines: tuple[int, ...]
    thread: str | None = None
    since: str | None = None
    cause: str | None = None
    remedy: str | None = None
    fails: str | None = None

    @property
    def name(self) -> str:
        return f"{self.theme}.{self.run.__name__}"

    @property
    def theme(self) -> str:
        return self.run.__module__.rpartition(".")[2]

    @property
    def filename(self) -> str:
        return inspect.unwrap(self.run).__code__.co_filename

    @property
    def runs_here(self) -> bool:
        return self.since is None or torch.__version__ >= self.since

    @property
    def is_report(self) -> bool:
        """Whether it says what a public report found, beyond the line."""
        return self.theme.startswith("reports")

    @property
    def has_cause_to_name(self) -> bool:
        """Whether a report has to name the cause behind the line."""
        return self.cause in CAUSES


PROGRAMS: list[Program] = []
"""Every program, in the order in which they stand."""


def program(
    *origins: str,
    module: str | None = None,
    entries: list[tuple[int, ...]] | None = None,
    operands: str | None = None,
    **facts: str,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put a function among the programs.

    Args:
        origins: kind, phase and operator of each.
        module, entries, operands: of the first, as in `Expected`.
        facts: `thread`, `since`, `cause`, `remedy` and `fails`, as in `Program`.
    """
    expected = [Expected(*origin.rsplit(maxsplit=2)) for origin in origins]
    if origins:
        expected[0] = replace(expected[0], module=module, entries=entries and tuple(entries), operands=operands)

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(function)
        def run() -> Any:
            torch.manual_seed(0)
            return function()

        PROGRAMS.append(Program(run, tuple(expected), marked(function, len(origins)), **facts))
        return run

    return register


def point(name: str, origin: str, values: list[Any], function: Callable[..., Any], **facts: Any) -> None:
    """Put a function of one leaf among the programs: a lambda on one line, whose sum is the loss.

    Args:
        name: of the program.
        origin: kind, phase and operator, or nothing for a clean program.
        values: of the leaf; half precision, if they are a tensor of it.
        function: its line is the expected one.
        facts: as of `program`.
    """

    @functools.wraps(function)
    def run() -> None:
        leaf = values.clone() if isinstance(values, torch.Tensor) else torch.tensor(values)
        function(leaf.requires_grad_()).sum().backward()

    run.__name__ = name.replace(" ", "_")
    program(*filter(None, [origin]), **facts)(run)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """What most training loops end with."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def marked(function: Callable[[], Any], count: int) -> tuple[int, ...]:
    """The lines of a function's source that are marked, by the number of their mark."""
    if hasattr(function, "__wrapped__"):  # a point
        return (inspect.unwrap(function).__code__.co_firstlineno,) * count
    source, first = inspect.getsourcelines(function)
    marks = ((first + at, re.search(r"# born(?: (\d+))?$", text)) for at, text in enumerate(source))
    lines = {int(mark[1] or 1): line for line, mark in marks if mark}
    assert sorted(lines) == list(range(1, count + 1)), f"{function.__name__} has {count} origins, and the marks {lines}"
    return tuple(lines[number] for number in sorted(lines))
