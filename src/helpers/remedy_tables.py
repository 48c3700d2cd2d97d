"""The results of `helpers.remedies` for readers: tables, and a tree that recommends a remedy."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import show
from .entries import describe
from .methods import method
from .recipes import IGNORED, USED
from .remedies import COLUMNS, WORDS, Row, compare, plain_of


@dataclass(frozen=True)
class Remedies:
    """All rows with their results: those whose dangerous element the loss ignores, and those whose element it uses."""

    ignored: Sequence[Row]
    used: Sequence[Row]

    @property
    def rows(self) -> list[Row]:
        """The rows of both kinds, in the order of the tables."""
        return [*self.ignored, *self.used]

    def count(self, remedy: str, *words: str, rows: Sequence[Row] | None = None) -> int:
        """How many rows of a remedy have one of these words. The default is all rows."""
        return sum(row.cells[remedy].word in words for row in (self.rows if rows is None else rows))


def every_remedy() -> Remedies:
    """Run every remedy on every row of `helpers.recipes`."""
    return Remedies(compare(IGNORED), compare(USED))


def marks_table(rows: Sequence[Row], caption: str) -> None:
    """Show a row for each situation, and a mark for each remedy. Screen readers read the word of a mark."""
    kinds = {"right": "good", "wrong number": "bad", "chosen": "own"}
    head = "".join(f'<th scope="col"><span>{html.escape(method(name).title)}</span></th>' for name in COLUMNS)
    body = "".join(
        f'<tr><th scope="row">{show.link(row.situation.page, row.situation.name)}</th>'
        + "".join(
            f'<td class="zn-{kinds.get(cell.word, "other")}-cell"><span aria-hidden="true">{WORDS[cell.word]}</span>'
            f'<span class="zn-said-only">{cell.word}</span></td>'
            for cell in row.cells.values()
        )
        + "</tr>"
        for row in rows
    )
    occurring = {cell.word for row in rows for cell in row.cells.values()}
    legend = ", ".join(f"<b>{symbol}</b> {word}" for word, symbol in WORDS.items() if word in occurring)
    width = max(len(row.situation.name) for row in rows)
    plain = "\n".join([caption, *(f"{row.situation.name:<{width}}  {row.marks}" for row in rows)])
    table = (
        f'<table class="zn-remedies"><caption>{html.escape(caption)}</caption><thead><tr>'
        f'<th scope="col">case</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    show.show(show.Item(plain, f'{table}<p class="zn-note">{legend}.</p>'))


def methods_table(found: Remedies) -> None:
    """Show a row for each remedy: how often it is right and wrong, and how many lines it changes or adds."""
    words = ("right", "wrong number", "NaN or inf", "error")
    rows = []
    for name in COLUMNS:
        lines = {row.cells[name].lines for row in found.rows if row.cells[name].word != "no place"}
        counts = [str(found.count(name, word, rows=found.ignored)) for word in words]
        chosen = f"{found.count(name, 'chosen', rows=found.used)} of {len(found.used)}"
        span = "–".join(map(str, sorted({min(lines), max(lines)})))
        rows.append([html.escape(method(name).title), *counts, chosen, span])
    plain = "\n".join(f"{name}: {', '.join(cells)}" for name, *cells in rows)
    caption = f"{len(rows) - 1} remedies and plain PyTorch, counted"
    table = show.table(caption, ["method", *words, "chosen", "lines"], rows)
    show.show(show.Item(plain, f'<div class="zn-figures">{table}</div>'))


def wrong_numbers_table(rows: Sequence[Row]) -> None:
    """Show each wrong number, and the remedies that gave it, next to the reference."""
    body, plain = [], []
    for row in rows:
        by: dict[str, list[str]] = {}
        for name, cell in row.cells.items():
            if cell.word == "wrong number":
                by.setdefault(describe(cell.gradient, 3), []).append(method(name).title)
        if by:
            right, gave = describe(row.reference, 3), [(gradient, ", ".join(names)) for gradient, names in by.items()]
            plain += [f"{row.situation.name}, reference {right}", *(f"  {each[0]}: {each[1]}" for each in gave)]
            told = "<br>".join(f"<strong>{html.escape(each[0])}</strong> {html.escape(each[1])}" for each in gave)
            body.append([html.escape(row.situation.name), html.escape(right), told])
    table = show.table("Every wrong number", ["case", "reference", "wrong number, and its remedies"], body)
    show.show(show.Item("\n".join(plain), show.prose(table)))


def changes_table(row: Row) -> None:
    """Show a row for each remedy: the lines of one situation's program that it changes or adds."""
    situation = row.situation
    plain = (plain_of(situation, "vanilla") + plain_of(situation, "module hook")).splitlines()
    changes = {name: [line for line in cell.code.splitlines() if line not in plain] for name, cell in row.cells.items()}
    changes["vanilla"] = [
        f"x = torch.tensor({situation.x}, requires_grad=True)",
        *situation.given.splitlines(),
        *row.cells["vanilla"].code.splitlines(),
    ]
    text = "\n".join(f"{method(name).title}: {'; '.join(lines)}" for name, lines in changes.items())
    caption = f"What each remedy changes or adds in the case <em>{html.escape(situation.name)}</em>"
    rows = [
        [html.escape(method(name).title), f"<pre>{html.escape(chr(10).join(lines))}</pre>"]
        for name, lines in changes.items()
    ]
    show.show(show.Item(text, show.prose(show.table(caption, ["method", "lines"], rows), kind="zn-programs")))


def tree(found: Remedies) -> Any:
    """The tree that recommends a remedy, with the count that supports each recommendation.

    A question is a pair of its text and its answers, with what follows each of them. An end is a column of the table,
    the advice, and the count.
    """
    ignored, used, every = len(found.ignored), len(found.used), len(found.rows)

    def right(remedy: str) -> str:
        return f"right in {found.count(remedy, 'right', rows=found.ignored)} of {ignored} cases"

    chosen = found.count("double where", "chosen", rows=found.used)
    kept = found.count("ignoring", "undefined", rows=found.used)
    quiet = every - found.count("clip or stop", "NaN or inf", "undefined", "wrong number")
    change = {
        "Yes, and the shape may change": (
            "select first",
            "Select the good rows before the dangerous function.",
            right("select first"),
        ),
        "Yes, but the shape must stay": (
            "double where",
            "One where inside the function, and one outside.",
            right("double where"),
        ),
        "No": (
            "ignoring",
            "Call ignoring.backward(loss).",
            f"{right('ignoring')}. (If the loss uses the bad element, its NaN or inf stays in {kept} of {used}.)",
        ),
    }
    know = {
        "Yes": (
            "double where",
            "In the inner where, write a harmless number. In the outer where, write an expression that has the "
            "gradient that you want for the bad element: a constant has the gradient 0.",
            f"a chosen number in {chosen} of {used} cases",
        ),
        "No": (
            "clip or stop",
            "Stop before optimizer.step() runs, and find the line that makes the NaN.",
            f"no NaN and no wrong number reaches the optimizer in {quiet} of {every} cases",
        ),
    }
    return "Does the loss use the bad element?", {
        "No": ("Can you change the forward code?", change),
        "Yes": ("Do you know which gradient you want there?", know),
    }


def decision_tree(found: Remedies) -> None:
    """Show the tree as nested lists, which screen readers can read, with lines between the items."""
    root = tree(found)
    show.show(show.Item("\n".join(_lines(root)), f'<div class="zn-tree">{_branch(root)}</div>'))


def _branch(node: Any) -> str:
    if len(node) == 3:
        remedy, advice, count = map(html.escape, (method(node[0]).title, *node[1:]))
        return f'<p class="zn-end"><b>{remedy}</b>: {advice}<span>{count}</span></p>'
    answers = "".join(
        f'<li><p class="zn-answer">{html.escape(answer)}</p>{_branch(after)}</li>' for answer, after in node[1].items()
    )
    return f'<p class="zn-question">{html.escape(node[0])}</p><ul>{answers}</ul>'


def _lines(node: Any, indent: str = "") -> Iterator[str]:
    if len(node) == 3:
        yield f"{indent}{method(node[0]).title}: {node[1]} ({node[2]})"
        return
    yield f"{indent}{node[0]}"
    for answer, after in node[1].items():
        yield f"{indent}- {answer}"
        yield from _lines(after, f"{indent}  ")
