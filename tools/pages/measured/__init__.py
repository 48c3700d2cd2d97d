"""Sphinx extension: figures and tables of what was measured, made from the records when the site is rendered.

A directive such as `{measured-costs}` shows a record of `results/measured/`. The file of the same name in
`tools/measure/` writes the record, and the file of the same name in this folder draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ...project import Problem, Project, read_record
from .attention import attention
from .compiled import compiled
from .costs import costs, in_short, watching
from .explained import explained
from .fixed import fixed
from .honesty import honesty
from .masked import masked
from .noticed import noticed
from .peers import peers
from .penguins import penguins
from .remedies import remedies
from .setups import setups

DRAWN: dict[str, tuple[str, Callable[..., str]]] = {
    "attention": ("attention", attention),
    "compiled": ("compiled", compiled),
    "costs": ("costs", costs),
    "costs-in-short": ("costs", in_short),
    "explained": ("explained", explained),
    "fixed": ("fixed", fixed),
    "honesty": ("honesty", honesty),
    "masked": ("masked", masked),
    "noticed": ("noticed", noticed),
    "peers": ("peers", peers),
    "penguins": ("penguins", penguins),
    "remedies": ("remedies", remedies),
    "setups": ("setups", setups),
    "watching": ("costs", watching),
}
"""By the last part of a directive's name: the record, and the function that draws it."""


class Measured(SphinxDirective):
    """A figure or table of one record. The part of the directive's name after `measured-` says which."""

    def run(self) -> list[nodes.Node]:
        """Read the record. The page is written again when the record or the code that draws it changes."""
        source, draw = DRAWN[self.name.removeprefix("measured-")]
        path = Project(Path(self.env.app.confdir)).results / "measured" / f"{source}.json"
        for read in (path, *Path(__file__).parent.glob("*.py")):
            self.env.note_dependency(str(read))
        if not path.is_file():
            raise self.error(f"{path} is missing: run `make {source}`")
        try:
            content = read_record(path)
        except Problem as problem:
            raise self.error(str(problem)) from problem
        return [nodes.raw("", draw(content), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    for name in DRAWN:
        app.add_directive(f"measured-{name}", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
