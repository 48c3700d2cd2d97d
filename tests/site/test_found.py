"""What search engines, and those who share a link, are told of a page."""

import json
import re
import struct
from urllib.parse import urlsplit
from xml.etree import ElementTree

from scratch import ROOT

from helpers import THREADS
from tools.pages.search import KEYWORDS
from tools.project import Project

PROJECT = Project(ROOT)
NAMES = [page.stem for page in PROJECT.pages]


def meta(soup, **attributes):
    (tag,) = soup.find_all("meta", attrs=attributes)
    return tag["content"]


def test_every_page_has_a_title_a_description_a_card_and_an_address_of_its_own(pages, site):
    seen = {"titles": set(), "descriptions": set(), "cards": set(), "threads": set()}
    for name in NAMES:
        soup = pages[PROJECT.path(f"chapters/{name}")]
        title, description = soup.title.get_text(), meta(soup, name="description")
        assert 10 < len(title) <= 100 and "Zero or NaN?" in title, name
        assert 50 <= len(description) <= 200 and meta(soup, name="keywords"), name
        (link,) = soup.find_all("link", rel="canonical")
        assert link["href"] == meta(soup, property="og:url") == PROJECT.address(f"chapters/{name}")
        # The card that a shared link shows.
        headline, image = meta(soup, property="og:title"), meta(soup, property="og:image")
        assert headline == soup.h1.get_text().removesuffix("#").strip()
        assert meta(soup, property="og:description") == description and meta(soup, property="og:image:alt").strip()
        card = (site / image.removeprefix(f"{PROJECT.site_url}/")).read_bytes()
        assert card.startswith(b"\x89PNG") and struct.unpack(">II", card[16:24]) == (1200, 630), name
        assert len(card) < 100_000, name
        # The article that a search engine reads.
        data = json.loads(soup.find("script", type="application/ld+json").get_text())
        assert (data["@context"], data["@type"]) == ("https://schema.org", "TechArticle")
        assert (data["headline"], data["description"], data["image"]) == (headline, description, image)
        assert data["isPartOf"]["name"] == "Zero or NaN?"
        for kind, value in (("titles", title), ("descriptions", description), ("cards", image)):
            seen[kind].add(value)
        seen["threads"].update(data.get("isBasedOn", []))
    assert [len(seen[kind]) for kind in ("titles", "descriptions", "cards")] == 3 * [len(NAMES)]
    assert len(list((site / "_static" / "cards").iterdir())) == len(NAMES)
    assert {thread.url for thread in THREADS.values()} <= seen["threads"]


def test_a_case_is_titled_in_the_words_that_people_search_with(pages):
    numbers = []
    for name in NAMES:
        soup = pages[PROJECT.path(f"chapters/{name}")]
        title = soup.title.get_text()
        for number in set(re.findall(r"pytorch#(\d+)", soup.h1.get_text())) - {"147140"}:  # that page is about a class
            assert number in title and "PyTorch" in title
            assert "NaN" in title.removesuffix("Zero or NaN?") or number == "184572"  # that page is about ties
            numbers.append(number)
    assert len(numbers) == len(set(numbers)) >= 10


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
        assert not parts.fragment or parts.fragment in anchors[parts.path], record["address"]
        assert parts.path in anchors and record["heading"], record["address"]
    have_keywords = [each["address"] for each in records if "keywords" in each and each["heading"] not in KEYWORDS]
    assert have_keywords == [*map(PROJECT.path, PROJECT.names)]
    assert len({record["address"] for record in records}) == len(records)
