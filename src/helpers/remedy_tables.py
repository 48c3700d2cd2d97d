"""The results of `helpers.remedies` for readers: tables, every program, and a tree that recommends a remedy."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import show
from .entries import Raised, describe
from .methods import method
from .recipes import IGNORED, REWRITES, USED, Situation
from .remedies import COLUMNS, WORDS, Cell, Row, compare, plain_of


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

    def lines(self, remedy: str) -> tuple[int, int]:
        """The fewest and the most lines that a remedy changes."""
        found = [row.cells[remedy].lines for row in self.rows if row.cells[remedy].word != "no place"]
        return min(found), max(found)

    def same_loss(self, remedy: str) -> tuple[int, int]:
        """How many rows have a loss with plain PyTorch's bits, and how many rows have a loss."""
        found = [row.same_loss(remedy) for row in self.rows if row.cells[remedy].loss is not None]
        return sum(found), len(found)

    def accepted(self, remedy: str) -> tuple[int, int]:
        """How many rows have a gradient with which SGD and Adam give finite weights, and how many have a gradient."""
        found = [set(cell.steps) == {"ok"} for cell in self.of(remedy) if cell.word not in ("no place", "error")]
        return sum(found), len(found)

    def refused(self, remedy: str) -> bool:
        """Whether an optimizer raises for the remedy's gradient."""
        cells = [cell for cell in self.of(remedy) if cell.word != "error"]
        return any(step not in ("ok", "NaN weights") for cell in cells for step in cell.steps)

    def of(self, remedy: str) -> list[Cell]:
        """The cells of a remedy, row by row."""
        return [row.cells[remedy] for row in self.rows]


def every_remedy() -> Remedies:
    """Run every remedy on every row of `helpers.recipes`."""
    return Remedies(compare(IGNORED), compare(USED))


def mark(word: str) -> str:
    """The mark of a word as HTML. Screen readers read the word itself."""
    return f'<span aria-hidden="true">{WORDS[word]}</span><span class="zn-said-only">{word}</span>'


def marks_table(rows: Sequence[Row], caption: str) -> None:
    """Show a row for each situation, and a mark for each remedy."""
    head = "".join(f'<th scope="col"><span>{html.escape(method(name).title)}</span></th>' for name in COLUMNS)
    body = "".join(
        f'<tr><th scope="row">{show.link(row.situation.page, row.situation.name)}</th>'
        + "".join(f'<td class="zn-{_kind(cell.word)}-cell">{mark(cell.word)}</td>' for cell in row.cells.values())
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


def _kind(word: str) -> str:
    return {"right": "good", "wrong number": "bad", "chosen": "own"}.get(word, "other")


def methods_table(found: Remedies) -> None:
    """Show a row for each remedy: how often it is right and wrong, and what it requires of the code."""
    ignored = len(found.ignored)
    rows, plain = [], []
    for name in COLUMNS:
        counts = Counter(row.cells[name].word for row in found.ignored)
        chosen = found.count(name, "chosen", rows=found.used)
        fewest, most = found.lines(name)
        (same, losses), (ok, gradients) = found.same_loss(name), found.accepted(name)
        accepted = "refused" if found.refused(name) else f"{ok} of {gradients}" if gradients else "no gradient"
        cells = [
            f"{counts['right']} of {ignored}",
            str(counts["wrong number"]),
            str(counts["NaN or inf"]),
            str(counts["error"]),
            f"{chosen} of {len(found.used)}",
            str(most) if fewest == most else f"{fewest}–{most}",
            f"{same} of {losses}",
            accepted,
        ]
        plain.append(f"{method(name).title}: {', '.join(cells)}")
        rows.append([html.escape(method(name).title), *cells])
    head = ["method", "right", "wrong number", "NaN or inf", "error", "chosen", "lines", "same loss", "steps"]
    caption = f"{len(rows) - 1} remedies and plain PyTorch, counted"
    show.show(show.Item("\n".join(plain), f'<div class="zn-figures">{show.table(caption, head, rows)}</div>'))


def numbers_table(rows: Sequence[Row], word: str, caption: str, closed: bool = False) -> None:
    """Show each number that got the given word, and the remedies that gave it, next to the reference."""
    body, plain = [], []
    for row in rows:
        by: dict[str, list[str]] = {}
        for name, cell in row.cells.items():
            if cell.word == word:
                by.setdefault(describe(cell.gradient, 3), []).append(method(name).title)
        lines = [f"{gradient}: {', '.join(names)}" for gradient, names in by.items()]
        if lines:
            right = describe(row.reference, 3)
            plain += [f"{row.situation.name}, reference {right}", *(f"  {line}" for line in lines)]
            told = "<br>".join(
                f"<strong>{html.escape(gradient)}</strong> {html.escape(', '.join(names))}"
                for gradient, names in by.items()
            )
            body.append([html.escape(row.situation.name), html.escape(right), told])
    head = ["case", "reference", "gives, by which remedy"]
    table = show.table(caption, head, body)
    if closed:
        table = f"<details><summary>{caption}, in {len(body)} cases</summary>{table}</details>"
    show.show(show.Item("\n".join(plain), show.prose(table)))


def changes_table(row: Row) -> None:
    """Show a row for each remedy: the lines of one situation's program that it changes or adds."""
    situation = row.situation
    plain = (plain_of(situation, "vanilla") + plain_of(situation, "module hook")).splitlines()
    changes = {name: [line for line in cell.code.splitlines() if line not in plain] for name, cell in row.cells.items()}
    changes["vanilla"] = [*_start(situation), *row.cells["vanilla"].code.splitlines()]
    text = "\n".join(f"{method(name).title}: {'; '.join(lines)}" for name, lines in changes.items())
    caption = f"What each remedy changes or adds in the case <em>{html.escape(situation.name)}</em>"
    rows = [[html.escape(method(name).title), _pre(lines)] for name, lines in changes.items()]
    table = show.table(caption, ["method", "lines"], rows)
    show.show(show.Item(text, show.prose(table, kind="zn-programs")))


def programs(rows: Sequence[Row]) -> None:
    """Show the result of every remedy in every row, folded, with the code of the remedies that rewrite the row."""
    text = "\n".join(
        f"{row.situation.name}, {method(name).title}: {describe(cell.gradient, 3)}"
        for row in rows
        for name, cell in row.cells.items()
        if cell.code
    )
    cards = "".join(map(_card, rows))
    show.show(show.Item(text, f"<details><summary>The programs of all {len(rows)} cases</summary>{cards}</details>"))


def _card(row: Row) -> str:
    situation = row.situation
    cells = "".join(
        f"<dt>{WORDS[cell.word]} {html.escape(method(name).title)}</dt><dd>{_gives(cell)}"
        + (f"{_pre(cell.code.splitlines()[:-1])}</dd>" if name in ("vanilla", *REWRITES) else "</dd>")
        for name, cell in row.cells.items()
        if cell.code
    )
    used = "" if situation.ignores else " (used)"
    return (
        f'<details class="zn-programs"><summary>{html.escape(situation.name)}{used}</summary>{_pre(_start(situation))}'
        f"<p>Reference: {html.escape(describe(row.reference))}</p><dl>{cells}</dl></details>"
    )


def _start(situation: Situation) -> list[str]:
    return [f"x = torch.tensor({situation.x}, requires_grad=True)", *situation.given.splitlines()]


def _pre(lines: Sequence[str]) -> str:
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _gives(cell: Cell) -> str:
    said = describe(cell.gradient)
    if isinstance(cell.gradient, Raised):
        said += f": {cell.gradient.message.strip().splitlines()[0][:100]}"
    return html.escape(said)


@dataclass(frozen=True)
class End:
    """An end of the tree: a column of the table, the advice, and the count that supports it."""

    remedy: str
    advice: str
    count: str


@dataclass(frozen=True)
class Question:
    """A question of the tree, and the subtree for each answer."""

    text: str
    answers: Mapping[str, Question | End]


def tree(found: Remedies) -> Question:
    """The tree that recommends a remedy.

    It has at most five ends. Each end is a column of the table, with its count.
    """
    ignored, used, every = len(found.ignored), len(found.used), len(found.rows)

    def right(remedy: str) -> str:
        return f"right in {found.count(remedy, 'right', rows=found.ignored)} of {ignored} cases"

    chosen = found.count("double where", "chosen", rows=found.used)
    kept = found.count("ignoring", "undefined", rows=found.used)
    quiet = every - found.count("clip or stop", "NaN or inf", "undefined", "wrong number")
    return Question(
        "Does the loss use the bad element?",
        {
            "No": Question(
                "Can you change the forward code?",
                {
                    "Yes, and the shape may change": End(
                        "select first", "Select the good rows before the dangerous function.", right("select first")
                    ),
                    "Yes, but the shape must stay": End(
                        "double where", "One where inside the function, and one outside.", right("double where")
                    ),
                    "No": End(
                        "ignoring",
                        "Call ignoring.backward(loss).",
                        f"{right('ignoring')}; an undefined gradient stays undefined in {kept} of {used}",
                    ),
                },
            ),
            "Yes": Question(
                "Do you know which gradient you want there?",
                {
                    "Yes": End(
                        "double where",
                        "In the inner where, write a harmless number. In the outer where, write an expression with "
                        "the value and the slope that you choose: a constant has slope 0.",
                        f"a chosen number in {chosen} of {used} cases",
                    ),
                    "No": End(
                        "clip or stop",
                        "Stop before the optimizer steps, and find the line.",
                        f"no NaN and no wrong number reaches the optimizer in {quiet} of {every} cases",
                    ),
                },
            ),
        },
    )


def ends(node: Question | End) -> list[End]:
    """The ends of a tree, from top to bottom."""
    return [node] if isinstance(node, End) else [end for after in node.answers.values() for end in ends(after)]


def decision_tree(found: Remedies) -> None:
    """Show the tree as nested lists, which screen readers can read, with lines between the items."""
    root = tree(found)
    show.show(show.Item("\n".join(_lines(root)), f'<div class="zn-tree">{_branch(root)}</div>'))


def _branch(node: Question | End) -> str:
    if isinstance(node, End):
        name = html.escape(method(node.remedy).title)
        return f'<p class="zn-end"><b>{name}</b>: {html.escape(node.advice)}<span>{html.escape(node.count)}</span></p>'
    answers = "".join(
        f'<li><p class="zn-answer">{html.escape(answer)}</p>{_branch(after)}</li>'
        for answer, after in node.answers.items()
    )
    return f'<p class="zn-question">{html.escape(node.text)}</p><ul>{answers}</ul>'


def _lines(node: Question | End, indent: str = "") -> list[str]:
    if isinstance(node, End):
        return [f"{indent}{method(node.remedy).title}: {node.advice} ({node.count})"]
    lines = [f"{indent}{node.text}"]
    for answer, after in node.answers.items():
        lines += [f"{indent}- {answer}", *_lines(after, f"{indent}  ")]
    return lines
