"""The addresses of pages and sections, because threads and papers link to them. What was published stays.

`results/addresses.txt` lists every address that a build has had. A build adds new ones, and fails if one is gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..project import Project, write

_SECTION = re.compile(r'<section id="([^"]+)"')
_NUMBERED = re.compile(r"id\d+")
"""An anchor that Sphinx has counted: it changes with the text before it, so nobody is promised that it stays."""


def lost_addresses(project: Project, pages: Mapping[str, str]) -> list[str]:
    """The listed addresses that no longer exist. If there are none, new addresses are added to the list.

    Args:
        project: the checkout.
        pages: the HTML of each page, by its path in the site.
    """
    listed = project.addresses.read_text(encoding="utf-8").split() if project.addresses.is_file() else []
    lost = [address for address in listed if not _exists(address, pages)]
    now = [
        f"{path}{anchor}"
        for path, page in pages.items()
        for anchor in ("", *(f"#{name}" for name in _SECTION.findall(page) if not _NUMBERED.fullmatch(name)))
    ]
    if not lost and (new := [address for address in now if address not in listed]):
        write(project.addresses, "\n".join(sorted({*listed, *new})) + "\n")
        print(f"{len(new)} new addresses are now kept: commit {project.addresses.relative_to(project.root)}")
    return lost


def _exists(address: str, pages: Mapping[str, str]) -> bool:
    path, _, anchor = address.partition("#")
    page = pages.get(path, "")
    return f'id="{anchor}"' in page if anchor else bool(page)
