"""The picture of the README: the verdict on pytorch#10729, as the built site shows it."""

from __future__ import annotations

from .measure.browser import VIEWS, Visit, chromium
from .project import Project, write
from .serve import built, served


def picture(project: Project) -> None:
    """Write `results/verdict.png`.

    Raises:
        Problem: if no site is built, or if there is no Chromium.
    """
    site = built(project)
    path = project.results / "verdict.png"
    with (
        served(site) as address,
        chromium() as browser,
        Visit(browser, address, **VIEWS["wide, light"], device_scale_factor=2) as visit,
    ):
        visit.open("chapters/where-over-exp.html")
        write(path, visit.page.locator("table[data-verdict]").screenshot())
    print(f"written: {path.relative_to(project.root)}")
