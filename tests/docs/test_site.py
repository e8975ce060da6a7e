"""The documentation is built strictly, and can be read and searched without a network or a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.screenshots import PICTURES
from tests.chromium import Watched, new_page
from tests.chromium import chromium as chromium
from tests.contrast import low_contrast

ROOT = Path(__file__).resolve().parents[2]
LOADING = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "embed": "src",
    "object": "data", "link": "href",
}  # fmt: skip
NOT_LOADED = {"canonical", "prev", "next"}  # relations of links that a browser does not follow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    # With --quiet, mkdocs 1.6 counts no warnings, and --strict would let dead links pass.
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


class Loaded(HTMLParser):
    """The addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADING and values.get("rel") not in NOT_LOADED:
            self.addresses.append(values.get(LOADING[tag], ""))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    elsewhere = re.compile(r"([a-z]+:)?//")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert loaded.addresses, page
        assert not [address for address in loaded.addresses if elsewhere.match(address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"url\(\s*[\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8")
        )


def test_every_part_of_the_navigation_is_there(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'class="md-tabs__link"[^>]*>\s*([^<]*?)\s*<', start)
    assert tabs == ["Start", "Tutorial", "How-to", "Concepts", "Reference", "Papers", "Results"]


def test_the_reference_shows_fields_with_their_descriptions(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for text in ("final answer; None when the parser reached none", "complete steps before any"):
        assert text in page
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_the_results_page_has_the_tables_of_the_readme() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Results\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) == 6  # heading, line, four policies
    assert [row for row in rows if row not in results] == []


def test_the_log_is_not_in_the_site_and_its_links_lead_to_entries(site: Path) -> None:
    assert not list(site.glob("log*"))
    assert not [
        page
        for page in site.rglob("*.html")
        if re.search(r'href="[^"]*\blog(/|\.md|\.html)', page.read_text(encoding="utf-8"))
    ]
    links = 0
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        for file, anchor in re.findall(r"\]\(([\w./-]*\blog(?:/[\d-]+)?\.md)#([\w-]+)\)", text):
            links += 1
            entries = (page.parent / file).read_text(encoding="utf-8")
            assert f'<a id="{anchor}"></a>' in entries, (page.name, file, anchor)
    assert links > 30


def test_the_pictures_of_the_pages_are_those_that_are_taken_from_a_run() -> None:
    pictures = {path.stem for path in (ROOT / "docs" / "images").glob("*.png")}
    assert pictures == set(PICTURES)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_text_has_enough_contrast_and_the_search_has_a_name(
    site: Path, chromium: Any, scheme: str
) -> None:
    page = new_page(chromium, color_scheme=scheme)
    for name in ("index", "look", "api"):
        page.goto((site / f"{name}.html").as_uri())
        assert low_contrast(page) == [], name
        assert page.locator(".md-search").get_attribute("aria-label") == "Search"


def test_the_pages_are_searched_as_files_without_any_request(site: Path, chromium: Any) -> None:
    watched = Watched(chromium, "file:")
    page = watched.page
    page.goto((site / "index.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("informativeness")
    page.wait_for_selector(".md-search-result__link")
    assert "prograph.html" in page.inner_html(".md-search-result__list")
    assert watched.incidents == []
