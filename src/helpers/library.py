"""The card of the library: its version, its license, what it needs, and on which releases results are recorded."""

from __future__ import annotations

import html

from zero_or_nan import __version__

from . import recorded, show


def library_card() -> None:
    """Show the facts that a person who decides about the library needs first.

    >>> library_card()  # doctest: +ELLIPSIS
    zero_or_nan ..., MIT license. It needs PyTorch 2.6 or newer, and nothing else.
    ...
    """
    by_device: dict[str, list[str]] = {}
    for record in recorded.records():
        by_device.setdefault(record["device"], []).append(record["torch"])
    found = [f"PyTorch {recorded.spans(versions)} on {device.upper()}" for device, versions in by_device.items()]
    where = "; ".join(found) or "no release"
    lines = [
        f"zero_or_nan {__version__}, MIT license. It needs PyTorch 2.6 or newer, and nothing else.",
        f"The results of this book are recorded for {where}. Tables that were measured on a GPU say so.",
    ]
    body = f'<div class="zn-claim">{"".join(f"<p>{html.escape(line)}</p>" for line in lines)}</div>'
    show.show(show.Item("\n".join(lines), body))
