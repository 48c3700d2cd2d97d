"""Measurements of the built site: Lighthouse's scores, the weight of each page, and axe-core's findings."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write
from ..serve import built, served
from .browser import MODULES, VIEWS, Visit, axe, chromium, executable, missing, weigh
from .records import keep

CATEGORIES = ("performance", "accessibility", "best-practices", "seo")


def site_report(project: Project) -> None:
    """Measure the site, print the tables, write them to `results/measured/site.json`, and make the README's picture.

    Raises:
        Problem: if the site is not built, or if the browser is not installed.
    """
    site = built(project)
    if lacking := missing(project.root):
        raise Problem(lacking)
    pages = [*map(project.path, project.names)]
    with served(site) as address:
        with chromium() as browser:
            _pictured(browser, address, project.results / "verdict.png")
            weights, findings = _looked_at(browser, address, project.root, pages)
        heaviest = max(weights, key=weights.__getitem__)
        scores = {}
        for page in dict.fromkeys((pages[0], heaviest)):
            for form in ("mobile", "desktop"):
                scores[f"{page}, {form}"] = lighthouse(project.root, f"{address}/{page}", form)
                print(_scores(f"{page}, {form}", scores[f"{page}, {form}"]), flush=True)
    keep(project, "site", {"lighthouse": scores, "bytes": weights, "axe": findings})


def _pictured(browser: Any, address: str, path: Path) -> None:
    """Take a picture of the verdict on pytorch#10729, for the README."""
    with Visit(browser, address, **VIEWS["wide, light"], device_scale_factor=2) as visit:
        visit.open("chapters/where-over-exp.html")
        write(path, visit.page.locator("table[data-verdict]").screenshot())
    print(f"written: {path.name}", flush=True)


def _looked_at(browser: Any, address: str, root: Path, pages: list[str]) -> tuple[dict[str, int], list[str]]:
    weights, findings = {}, []
    for page in pages:
        with Visit(browser, address) as visit:
            weights[page] = weigh(visit, page)
        print(f"{weights[page] / 1024:6.1f} KiB  {page}", flush=True)
    for name, view in VIEWS.items():
        with Visit(browser, address, **view) as visit:
            for page in pages:
                visit.open(page)
                findings += [f"{page}, {name}: {found}" for found in axe(visit, root)]
    print(f"axe-core: {len(findings)} findings on {len(pages)} pages in {len(VIEWS)} views")
    return weights, findings


def lighthouse(root: Path, address: str, form: str) -> dict[str, Any]:
    """Lighthouse's scores for a page, from 0 to 1, and the audits that cost points.

    Lighthouse runs three times, and the run with the median performance counts.

    Args:
        root: the checkout.
        address: the address of the page.
        form: "mobile" or "desktop".
    """
    runs = sorted((_lighthouse(root, address, form) for _ in range(3)), key=lambda run: run["scores"]["performance"])
    return runs[1]


def _lighthouse(root: Path, address: str, form: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            str(root / MODULES / ".bin" / "lighthouse"),
            address,
            "--quiet",
            "--output=json",
            f"--output-path={path}",
            f"--chrome-path={executable()}",
            "--chrome-flags=--headless=new --no-sandbox",
            f"--only-categories={','.join(CATEGORIES)}",
            *(["--preset=desktop"] if form == "desktop" else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if done.returncode:
            raise Problem(f"Lighthouse failed on {address}:\n{done.stderr.strip()}")
        report = json.loads(path.read_text(encoding="utf-8"))
    scores = {category: report["categories"][category]["score"] for category in CATEGORIES}
    weighed = [
        reference["id"] for category in CATEGORIES for reference in report["categories"][category]["auditRefs"]
        if reference["weight"]
    ]  # fmt: skip
    lost = {key: report["audits"][key]["score"] for key in weighed if (report["audits"][key]["score"] or 0) < 1}
    lost = {key: score for key, score in lost.items() if score is not None}
    return {"scores": scores, "below one": lost}


def _scores(name: str, found: dict[str, Any]) -> str:
    scores = "  ".join(f"{category} {score:.2f}" for category, score in found["scores"].items())
    lost = ", ".join(f"{key} {score:.2f}" for key, score in found["below one"].items())
    return f"{name}: {scores}" + (f"  ({lost})" if lost else "")
