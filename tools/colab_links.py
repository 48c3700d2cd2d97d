"""Sphinx extension: the launch button opens the generated notebook.

The theme expects a notebook beside its page, and would otherwise send Colab to the `.md`, which it can't open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from .project import Project

_COLAB = "https://colab.research.google.com/"


def _aim(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if doctree is None:
        return
    project = Project(Path(app.confdir))
    url = project.colab_url(project.root / f"{pagename}.md")
    for button in _flat(context.get("header_buttons", [])):
        if str(button.get("url", "")).startswith(_COLAB):
            button["url"] = url


def _flat(buttons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All buttons, those in drop-down groups too."""
    return [inner for button in buttons for inner in (button, *_flat(button.get("buttons", [])))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx, after the theme has made its buttons (at 501)."""
    app.connect("html-page-context", _aim, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
