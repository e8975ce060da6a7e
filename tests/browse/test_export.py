"""``steep browse --export``: one HTML file with the pairs that match."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from pipeline.browse.export import export_pairs
from pipeline.browse.site import Site
from pipeline.core.errors import InputError
from tests.browse.test_security import Tags


def exported(site: Site, path: Path, filter: str = "", limit: int = 100) -> str:
    export_pairs(site.first, path, filter, limit)
    return path.read_text(encoding="utf-8")


def test_the_file_has_the_pairs_with_texts_steps_and_rewards(site: Site, tmp_path: Path) -> None:
    page = exported(site, tmp_path / "pairs.html", "kind=hard")
    assert page.count('<details class="example"') == 3
    assert "3 of 3 pairs" in page
    assert "Vell is a harbour city on the river Ime." in page
    assert "Vell country Ostar" in page  # a retrieved item
    assert re.search(r"outcome</th><td>1</td><td>0</td>", page)
    assert "lower than the chosen 1 by at least 0.3 (pairs.hard_margin)" in page


@pytest.fixture(scope="module")
def page(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    return exported(site, tmp_path_factory.mktemp("export") / "pairs.html")


def test_the_file_refers_to_nothing_outside_it(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    assert tags.found == ["style"]
    assert not re.search(r"(href|src|action)=", re.sub(r"&lt;.*?&gt;", "", page))
    assert "@import" not in page
    assert "url(" not in page


def test_its_content_policy_admits_only_its_own_style(page: str) -> None:
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert "&lt;script&gt;alert" in page


def test_without_an_order_every_round_and_kind_has_its_first_pair_before_any_second(
    site: Site, tmp_path: Path
) -> None:
    page = exported(site, tmp_path / "a.html", limit=2)
    assert "2 of 6 pairs" in page
    assert "Round 1, easy" in page
    assert "Round 2, hard" in page


@pytest.mark.parametrize(
    ("filter", "problem"),
    [
        ("kind=impossible", "no pair of run stored matches"),
        ("kind", "expected name=value"),
        ("colour=red", "unknown filter"),
    ],
)
def test_a_filter_without_pairs_writes_nothing(
    site: Site, tmp_path: Path, filter: str, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        export_pairs(site.first, tmp_path / "pairs.html", filter, 10)
    assert list(tmp_path.iterdir()) == []
