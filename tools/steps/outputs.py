"""The output of the cells of every page, compared with the output that was recorded for the page.

Claims check what a page asserts. This step checks everything else that a reader sees: if the output of a cell is not
the recorded output, the build stops. `results/outputs.json` holds the outputs of the release that the site is built
with.

There are only four exceptions:

- The number of a cell in a traceback (`Cell In[7]`) is not compared. It changes when an author adds a cell above.
- The build of a release, such as `+cpu` in `2.13.0+cpu`, is not compared.
- If a cell is tagged `rounded`, its numbers are compared to six digits. Processors differ by an ulp or so in `exp`,
  `log` and `pow`.
- If a cell is tagged `processor`, only its words are compared. Processors add up a matrix product in different orders.
  The sums differ in the last digit, and a training run that diverges multiplies this difference with each step.

If a cell is tagged `remove-stderr`, the page does not show its warnings, and they are not compared. The record has the
tags of a cell, because they decide what readers see, and what is compared.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..project import Problem, Project, read_record, write_record
from .collect import MIME, STATEMENTS, ChapterRun, Notebook

_CELL_NUMBER = re.compile(r"Cell In\[\d+\]")
_BUILD = re.compile(r"(?<=\d)\+(?:cpu|cu\d+)\b")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")
_NUMBER_OR_SPACE = re.compile(r"\s+|(?<![\w.])-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)(?!\w)")
_PICTURE = "[figure"
_DIGEST = re.compile(r"[0-9a-f]{12}$")
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
"""The styles that every output carries for Colab. They are the same in all outputs."""
DIGITS = 1e-6
"""The relative difference that numbers of a cell tagged `rounded` may have."""
HIDDEN = {"remove-stderr": "stderr"}
"""The tags that may hide a part of an output from readers, with the name of this part."""


@dataclass(frozen=True)
class Output:
    """What one code cell shows.

    Attributes:
        cell: a digest of the cell's code. It identifies the cell if others are added or removed.
        text: everything that the cell shows, as text; for a picture also a digest.
        name: how a message names the cell; empty if the output comes from the record.
        tags: the tags of the cell. They say what is compared.
    """

    cell: str
    text: str
    name: str = ""
    tags: frozenset[str] = frozenset()

    def equals(self, recorded: Output) -> bool:
        """Whether the cell shows the recorded output, and has the recorded tags."""
        if self.tags != recorded.tags or self.text == recorded.text:
            return self.tags == recorded.tags
        if "processor" in self.tags:
            return _words(self.text) == _words(recorded.text)
        return "rounded" in self.tags and alike(self.text, recorded.text)


class Recorded:
    """Recorded outputs, and the environment that gave them.

    Args:
        content: the record. Without a record nothing is compared.
    """

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        content = content or {"made_with": {}, "pages": {}}
        self.made_with: dict[str, str] = content["made_with"]
        self._pages = {
            page: [
                Output(row["cell"], "\n".join(row["output"]), tags=frozenset(row.get("tags", "").split()))
                for row in rows
            ]
            for page, rows in content["pages"].items()
        }

    @classmethod
    def read(cls, project: Project) -> Recorded:
        """The record of a checkout; an empty record if the file is missing. `check_records` raises if it is required.

        Raises:
            Problem: if the record can't be read, or if this is the pinned environment and the record is of another one.
        """
        if not project.outputs.is_file():
            return cls()
        recorded, pins = cls(read_record(project.outputs)), project.root / "requirements.txt"
        pinned = re.findall(r"(?m)^(torch|matplotlib)==([^\s+]+)", pins.read_text("utf-8") if pins.is_file() else "")
        if {**dict(pinned), "device": "cpu"} == environment() and not recorded.applies:
            raise Problem(
                f"{project.outputs} was recorded with {recorded.made_with}, but {pins.name} pins what is installed, "
                f"{environment()}; run `make record`"
            )
        return recorded

    @property
    def applies(self) -> bool:
        """Whether this environment is the recorded one. Other releases print other messages and draw other pictures."""
        return self.made_with == environment()

    def differences(self, run: ChapterRun) -> list[str]:
        """One text, with both outputs, for each cell whose output is not as recorded.

        The list is empty in another environment, and after a cell failed: the later outputs then depend on the failure.
        """
        if not self.applies or run.troubles:
            return []
        page = run.chapter.stem
        if page not in self._pages:
            return ["the page is not in the record"]
        now, before = outputs(run.notebook), self._pages[page]
        blocks = difflib.SequenceMatcher(None, [o.cell for o in before], [o.cell for o in now], autojunk=False)
        found = []
        for _, first, last, start, end in blocks.get_opcodes():
            for index in range(max(last - first, end - start)):
                old = before[first + index] if first + index < last else None
                new = now[start + index] if start + index < end else None
                if old is None or new is None or not new.equals(old):
                    found.append(_told(old, new))
        return found

    def count(self, runs: Iterable[ChapterRun]) -> int:
        """How many cells of these chapters have a recorded output."""
        return sum(len(self._pages.get(run.chapter.stem, [])) for run in runs)


def environment() -> dict[str, str]:
    """The versions and the device that determine the outputs of cells."""
    packages = {name: version(name).partition("+")[0] for name in ("torch", "matplotlib")}
    return {**packages, "device": os.environ.get("ZERO_OR_NAN_DEVICE", "cpu")}


def alike(one: str, other: str) -> bool:
    """Whether two texts differ at most by the rounding of their numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(*(map(float, _NUMBER.findall(text)) for text in (one, other)), strict=True)
    return all(math.isclose(*pair, rel_tol=DIGITS) for pair in pairs)


def visible(notebook: Notebook) -> Iterator[tuple[str, Mapping[str, Any], list[Any]]]:
    """Each code cell of an executed notebook that shows something, with its name in messages, and what it shows."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        hidden = {HIDDEN.get(tag) for tag in cell["metadata"].get("tags", [])}
        if left := [output for output in cell["outputs"] if output.get("name", "") not in hidden]:
            first = "".join(cell["source"]).strip().partition("\n")[0]
            yield f"code cell {number} ({first})", cell, left


def outputs(notebook: Notebook) -> list[Output]:
    """The output of each code cell of an executed notebook, without claims and verdicts: `claimed` compares these."""
    found = []
    for name, cell, left in visible(notebook):
        if text := "\n".join(filter(None, map(_text, left))):
            digest = hashlib.sha256("".join(cell["source"]).encode()).hexdigest()[:12]
            found.append(Output(digest, text, name, frozenset(cell["metadata"].get("tags", []))))
    return found


def _words(text: str) -> list[str]:
    """The lines of an output, without numbers and without digests of pictures. Equal lines in a row count once."""
    lines = [" ".join(_NUMBER_OR_SPACE.sub(" ", line).split()) for line in text.split("\n") if not _DIGEST.match(line)]
    return [line for line, _ in itertools.groupby(lines)]


def record_outputs(project: Project, runs: Iterable[ChapterRun]) -> Path:
    """Write the output of every cell of these chapters to `results/outputs.json`, and return the file."""
    pages = {
        run.chapter.stem: [
            {
                "cell": output.cell,
                **({"tags": " ".join(sorted(output.tags))} if output.tags else {}),
                "output": output.text.split("\n"),
            }
            for output in outputs(run.notebook)
        ]
        for run in runs
    }
    write_record(project.outputs, {"made_with": environment(), "pages": pages}, indent=1)
    return project.outputs


def _text(output: Any) -> str:
    """One output as text; empty for a claim or a verdict. Of a thread or the card of a case, what was read there."""
    if output["output_type"] == "stream":
        text = "".join(output["text"])
    elif output["output_type"] == "error":
        text = f"{output['ename']}: {output['evalue']}"
    elif (fact := output["data"].get(MIME, {})).get("type") in STATEMENTS:
        return ""
    elif fact:
        text = "\n".join(fact[key] for key in ("title", "url", "state", "looked_up"))
    else:
        text = "".join(output["data"].get("text/plain", ""))
        if text.startswith(_PICTURE):
            drawing = _STYLE.sub("", "".join(output["data"]["text/html"]))
            text += f"\n{hashlib.sha256(drawing.encode()).hexdigest()[:12]}"
    return _BUILD.sub("", _CELL_NUMBER.sub("Cell In[…]", text)).strip("\n")


def _told(recorded: Output | None, shown: Output | None) -> str:
    if recorded is None:
        assert shown is not None
        return f"{shown.name} shows an output that is not in the record:\n{_lines('+', shown)}"
    if shown is None:
        return f"the record has an output that no cell shows any more:\n{_lines('-', recorded)}"
    if recorded.tags != shown.tags:
        old, new = (", ".join(sorted(output.tags)) or "none" for output in (recorded, shown))
        return f"{shown.name} has other tags than recorded: recorded {old}, now {new}"
    diff = list(difflib.unified_diff(recorded.text.split("\n"), shown.text.split("\n"), n=2, lineterm=""))[3:]
    head = f"{shown.name} shows another output than the recorded one (- recorded, + now):\n"
    return head + "\n".join(f"  {line[:1]} {line[1:]}".rstrip() for line in diff)


def _lines(sign: str, output: Output) -> str:
    return "\n".join(f"  {sign} {line}".rstrip() for line in output.text.split("\n"))
