"""The addresses of the repository are those in the configuration, and its files that texts name exist."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scratch import ROOT

from tools.project import Project

PROJECT = Project(ROOT)
NAME = PROJECT.repository.rpartition("/")[2]


def tracked(*patterns: str) -> list[Path]:
    """The files of this checkout that git tracks, or would track, without the tests."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns, ":!tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def test_every_address_of_this_repository_is_the_one_in_the_configuration():
    owner = urlsplit(PROJECT.repository).path.split("/")[1]
    wrong, own = [], 0
    for path in tracked():
        text = path.read_bytes().decode(errors="replace")
        for where, found in re.findall(rf"(github\.com|google\.com/github)/([\w-]+)/{NAME}\b", text):
            own += found == owner
            wrong += [f"{path.relative_to(ROOT)}: {where}/{found}"] * (found != owner)
        for site in re.findall(rf"https?://[\w.-]+\.github\.io/{NAME}\b", text):
            wrong += [f"{path.relative_to(ROOT)}: {site}"] * (site != PROJECT.site_url)
    assert wrong == [] and own >= 10


def test_the_files_that_texts_and_the_template_point_to_exist():
    address = rf"{PROJECT.repository}/(?:blob|tree|raw|edit)/{PROJECT.branch}/([^)\s?#\"]+)"
    own = [*ROOT.glob("*.md")]
    seen = 0
    for path in [*own, *PROJECT.pages]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)] if path in own else []
        found = re.findall(address, text) + [link for link in links if not urlsplit(link).scheme]
        found += [
            re.sub(r"\.html$", ".md", link[len(PROJECT.site_url) + 1 :]) for link in links if PROJECT.site_url in link
        ]
        assert [name for name in found if not (ROOT / unquote(name)).exists()] == [], path.name
        seen += len(found)
    assert seen > 30


def test_the_front_page_stands_on_the_package_index_too_where_a_relative_link_leads_nowhere():
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links and all(urlsplit(link).scheme == "https" for link in links)
