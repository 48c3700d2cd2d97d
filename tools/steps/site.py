"""The digest of the site, by which two sites can be compared."""

from __future__ import annotations

import hashlib

from ..project import Project

COVERED = "all files of _build/html but .buildinfo"
"""What the site's digest covers. Sphinx writes its settings to `.buildinfo`, and no page shows them."""


def site_digest(project: Project) -> str:
    """SHA-256 over what `sha256sum` prints for all files that are `COVERED`, sorted by the bytes of their paths."""
    site = project.site
    files = {f"./{path.relative_to(site).as_posix()}": path for path in site.rglob("*") if path.is_file()}
    files.pop("./.buildinfo", None)
    lines = (f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
