"""Every link leads somewhere, nothing is loaded from elsewhere, and one file names the repository."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from scratch import ROOT

from tools.project import Project
from tools.steps.shown import broken

PROJECT = Project(ROOT)
TEXT = {".md", ".ipynb", ".yml", ".yaml", ".toml", ".cff", ".py", ".html", ".css", ".js", ".svg", ""}
# Those whose repositories the book speaks of, and those whose actions its pipeline runs.
OTHERS = set(
    "pytorch jax-ml keras-team ipython actions NVlabs AnswerDotAI BLAST-AI-ML DLR-RM Lightning-AI amdegroot chemprop "
    "csteinmetz1 facebookresearch google-deepmind hiyouga huggingface karpathy kornia radixark unslothai".split()
)
PENGUINS = "https://allisonhorst.github.io/palmerpenguins"
"""The site of the data that a page uses."""


def test_the_search_the_index_and_the_notebooks_lead_to_pages_and_anchors_too(site, pages):
    texts = {path: (site / path).read_text(encoding="utf-8") for path in pages}
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        links = re.findall(rf"\]\(({re.escape(PROJECT.site_url)}/[^)]*)\)", notebook.read_text(encoding="utf-8"))
        texts[notebook.name] = "".join(f'<a href="{link}">' for link in links)
    assert {"search.html", "genindex.html", "where-over-exp.ipynb"} < texts.keys()
    assert sum(text.count(" href=") for text in texts.values()) > 1000
    assert broken(site, texts, PROJECT.site_url, {PROJECT.pdf.name}) == []


def test_the_repositorys_files_that_pages_point_to_exist(pages):
    prefix = re.compile(rf"{re.escape(PROJECT.repository)}/(?:edit|blob|tree|raw)/{re.escape(PROJECT.branch)}/([^?#]+)")
    seen = set()
    for path, soup in pages.items():
        for link in soup.find_all("a", href=True):
            if found := prefix.match(link["href"]):
                assert (ROOT / unquote(found[1])).is_file(), (path, link["href"])
                seen.add(found[1])
    assert {f"chapters/{page.name}" for page in PROJECT.pages} <= seen


def test_no_style_and_no_script_names_another_host(site):
    # What a page itself may load is a matter of its policy, which test_pages.py and a browser check.
    ours = [*site.rglob("*.css"), *(site / "_static").glob("*.js")]
    assert len(ours) > 5
    for path in ours:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "Sphinx" in text or not re.search(r"https?://", text), path.name


def test_no_path_of_the_machine_that_built_it_is_on_the_site(site):
    private = {str(ROOT), "ipykernel_", "/tmp/"}
    if len(Path.home().parts) > 1:
        private.add(f"{Path.home()}/")
    found = [
        f"{path.relative_to(site)}: {word}"
        for path in [*site.rglob("*.html"), *site.rglob("*.ipynb"), *site.rglob("*.md"), site / "search.json"]
        for word in private
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def tracked() -> list[Path]:
    """The text files of this checkout; those that git would track, where git is there to say so."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        files = [ROOT / name for name in listed if name]
    else:
        # What git would leave out: folders that tools make for themselves, and what was built.
        made = re.compile(r"(^|/)(\.(?!github)[^/]*|_build|build|__pycache__|[^/]*\.egg-info)/")
        files = [path for path in ROOT.rglob("*") if not made.search(path.relative_to(ROOT).as_posix())]
    tests = ROOT / "tests"
    return [path for path in files if path.is_file() and path.suffix in TEXT and tests not in path.parents]


def test_every_address_of_this_repository_is_the_one_in_the_configuration():
    slug = PROJECT.repository.removeprefix("https://github.com/")
    wrong, own = [], 0
    for path in tracked():
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"(?:github\.com|google\.com/github)/([\w.-]+/[\w.-]+)", text):
            named = found.removesuffix(".git").rstrip(".")
            if named == slug:
                own += 1
            elif named.split("/")[0] not in OTHERS:
                wrong.append(f"{path.relative_to(ROOT)}: {named}")
        for site in re.findall(r"https?://[\w-]+\.github\.io/[\w.-]*", text):
            if site.rstrip("/.") not in (PROJECT.site_url, PENGUINS):
                wrong.append(f"{path.relative_to(ROOT)}: {site}")
    assert wrong == []
    assert own >= 10


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_files_that_a_front_page_points_to_exist(name):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path = link.partition("#")[0]
        if path.startswith(PROJECT.site_url):
            path = path.removeprefix(f"{PROJECT.site_url}/").replace(".html", ".md")
        path = re.sub(rf"^{PROJECT.repository}/(blob|tree)/{PROJECT.branch}/", "", path)
        path = re.sub(r"^https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/main/", "", path)
        if path and not urlsplit(path).scheme:
            assert (ROOT / path).exists(), link


def test_the_front_page_stands_on_the_package_index_too_where_a_relative_link_leads_nowhere():
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links and all(urlsplit(link).scheme == "https" for link in links)
