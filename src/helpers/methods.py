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
    one sentence what the method does.
    """

    name: str
    title: str
    summary: str


METHODS: dict[str, Method] = {}
"""Every registered method, by its name, in the order of registration."""


def register(name: str, title: str, summary: str) -> Method:
    """Register a method under `name`, so that claims can name it.

    Raises:
        ValueError: if another method already has this name.
    """
    if name in METHODS:
        raise ValueError(f"the method {name!r} is already registered, as: {METHODS[name].summary} Choose another name.")
    METHODS[name] = Method(name, title, summary)
    return METHODS[name]


def method(name: str) -> Method:
    """The method registered under `name`.

    Raises:
        KeyError: if there is no such method. The message lists all methods.

    >>> method("vanilla").title
    'vanilla'
    """
    if name not in METHODS:
        raise KeyError(
            f"no method is called {name!r}; the methods are {', '.join(METHODS)}. "
            "To add one, call helpers.methods.register"
        )
    return METHODS[name]


for _name, _row in load("methods").items():
    register(_name, _row.get("title", _name), _row["summary"])
