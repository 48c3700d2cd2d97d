"""What search engines, and those who share a link, are told of a page."""

import json
import re
import struct
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from scratch import ROOT

from helpers import THREADS
from tools.project import Project

PROJECT = Project(ROOT)
NAMES = [page.stem for page in PROJECT.pages]


def meta(soup, **attributes):
    (tag,) = soup.find_all("meta", attrs=attributes)
    return tag["content"]


def test_titles_and_descriptions_are_there_and_no_two_are_alike(pages):
    titles, descriptions = set(), set()
    for name in NAMES:
        soup = pages[PROJECT.path(f"chapters/{name}")]
        title, description = soup.title.get_text(), meta(soup, name="description")
        assert 10 < len(title) <= 100 and "Zero or NaN?" in title, name
        assert 50 <= len(description) <= 200, name
        assert meta(soup, name="keywords")
        titles.add(title)
        descriptions.add(description)
    assert len(titles) == len(descriptions) == len(NAMES)


NO_NAN = {"184572"}
"""A page about ties."""


def test_a_case_is_titled_in_the_words_that_people_search_with(pages):
    numbers = []
    for name in NAMES:
        soup = pages[PROJECT.path(f"chapters/{name}")]
        title = soup.title.get_text()
        for number in set(re.findall(r"pytorch#(\d+)", soup.h1.get_text())) - {"147140"}:  # that page is about a class
            assert number in title and "PyTorch" in title
            assert "NaN" in title.removesuffix("Zero or NaN?") or number in NO_NAN
            numbers.append(number)
    assert len(numbers) == len(set(numbers)) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_link_shows_a_card(pages, site, name):
    soup = pages[PROJECT.path(f"chapters/{name}")]
    assert meta(soup, property="og:title") == soup.h1.get_text().removesuffix("#").strip()
    assert meta(soup, property="og:description") == meta(soup, name="description")
    assert meta(soup, property="og:url") == PROJECT.address(f"chapters/{name}")
    assert meta(soup, property="og:image:alt").strip()
    address = meta(soup, property="og:image")
    content = (site / address.removeprefix(f"{PROJECT.site_url}/")).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1200, 630)
    assert len(content) < 100_000


def test_a_page_has_one_card(site):
    assert len(list((site / "_static" / "cards").iterdir())) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_canonical_address_is_the_pages_own(pages, name):
    (link,) = pages[PROJECT.path(f"chapters/{name}")].find_all("link", rel="canonical")
    assert link["href"] == PROJECT.address(f"chapters/{name}")


@pytest.mark.parametrize("name", NAMES)
def test_structured_data_describe_a_technical_article(pages, name):
    soup = pages[PROJECT.path(f"chapters/{name}")]
    (script,) = soup.find_all("script", type="application/ld+json")
    data = json.loads(script.get_text())
    assert data["@context"] == "https://schema.org" and data["@type"] == "TechArticle"
    assert data["headline"] == meta(soup, property="og:title")
    assert data["description"] == meta(soup, name="description")
    assert data["image"] == meta(soup, property="og:image")
    assert data["isPartOf"]["name"] == "Zero or NaN?"


def test_the_article_of_a_case_is_based_on_its_thread(pages):
    based = set()
    for name in NAMES:
        data = json.loads(pages[PROJECT.path(f"chapters/{name}")].find("script", type="application/ld+json").get_text())
        based |= set(data.get("isBasedOn", []))
    assert {thread.url for thread in THREADS.values()} <= based


def test_the_sitemap_has_every_page_and_no_other(site):
    tree = ElementTree.parse(site / "sitemap.xml")
    found = [tag.text for tag in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    assert found == [f"{PROJECT.site_url}/", *(f"{PROJECT.site_url}/chapters/{name}.html" for name in NAMES[1:])]


def test_pages_that_are_no_text_are_not_to_be_found(pages, site):
    assert meta(pages["search.html"], name="robots") == "noindex"
    assert "noindex" in (site / "404.html").read_text(encoding="utf-8")


def test_what_is_searched_leads_to_anchors_that_exist(pages, site):
    records = json.loads((site / "search.json").read_text(encoding="utf-8"))
    anchors = {path: {tag["id"] for tag in soup.find_all(id=True)} for path, soup in pages.items()}
    for record in records:
        parts = urlsplit(record["address"])
        assert parts.path in anchors and (not parts.fragment or parts.fragment in anchors[parts.path]), record[
            "address"
        ]
        assert record["heading"]
    assert [record["address"] for record in records if "keywords" in record] == [*map(PROJECT.path, PROJECT.names)]
    assert len({record["address"] for record in records}) == len(records)


def test_what_is_searched_is_the_text_and_the_code_but_no_markup(site):
    records = {r["address"]: r for r in json.loads((site / "search.json").read_text(encoding="utf-8"))}
    text = records["chapters/where-over-exp.html#what-happens"]["text"]
    assert "The forward pass computes exp(x) if x is negative" in text
    assert "torch.ones_like(x)" in text
    assert all("<div" not in record["text"] and "<style" not in record["text"] for record in records.values())
