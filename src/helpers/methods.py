"""The methods that the pages compare.

A claim names its method. A misspelt name is therefore an error and not a new column. `data/methods.toml` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from .data import load


@dataclass(frozen=True)
class Method:
    """A method compared on a page.

    `name` is the word in code, tables and machine-readable claims. `title` is the header of a column. `summary` says in
    one sentence what the method does. The other fields are for the table of methods, which has those with a `page`.
    """

    name: str
    title: str
    summary: str
    keeps_code: bool = False
    is_plain: bool = False
    fails: str = ""
    page: str = ""


METHODS: dict[str, Method] = {
    name: Method(**{"name": name, "title": name, **row}) for name, row in load("methods").items()
}
"""Every method, by its name, in the order of the tables."""


def method(name: str) -> Method:
    """The method with this name.

    Raises:
        KeyError: if there is no such method. The message lists all methods.

    >>> method("vanilla").title
    'vanilla'
    """
    if name not in METHODS:
        raise KeyError(
            f"no method is called {name!r}; the methods are {', '.join(METHODS)}. "
            "To add one, add it to helpers/data/methods.toml"
        )
    return METHODS[name]
