"""Silence the one warning that every page would otherwise repeat, and keep machine paths off the pages.

`torch.masked` warns about its prototype state at every construction. The book says so once, in prose. Nothing else
is silenced: a warning that a page provokes is part of what the page shows.
"""

from __future__ import annotations

import warnings

from . import show

PROTOTYPE = "The PyTorch API of MaskedTensors is in prototype stage"


def quiet_prototype_warning() -> None:
    """Ignore `torch.masked`'s prototype warning, and no other.

    Called once when `helpers` is imported; call it again after `warnings.resetwarnings()`.

    >>> quiet_prototype_warning()
    >>> import torch, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     _ = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    >>> len(caught)
    0
    """
    warnings.filterwarnings("ignore", message=PROTOTYPE, category=UserWarning)


def short_warnings() -> None:
    """In a notebook, show a warning as its category and text; elsewhere do nothing.

    The usual form begins with a path on the machine that ran the cell, and with the kernel's process number: of no use
    to a reader, and different in every build.
    """
    if show.notebook() is not None:
        warnings.formatwarning = _category_and_text


def _category_and_text(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"{category.__name__}: {message}\n"
