"""The browser driven in headless Chromium: what a person does, and what hostile text may not do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from pipeline.look.browse.app import create_app
from pipeline.look.browse.asking import Desk
from pipeline.look.browse.site import RunEntry, Site
from pipeline.look.report import page as report
from tests.browse.stored_run import HOSTILE, NAME
from tests.browse.test_asking import Fake, no_engine
from tests.chromium import Watched, new_page
from tests.chromium import chromium as chromium
from tests.contrast import low_contrast
from tests.stages.fabricated_run import write_run

PAGES = (
    "/",
    "/run/stored/pairs",
    "/run/stored/trajectories",
    "/run/stored/pair/round-1/1",
    "/run/stored/pair/round-1/2?tokens=yes",
    "/run/stored/trajectory/round-1/5?tokens=yes",
    "/run/stored/chunk?id=c1",
    "/run/stored/chunk?id=c1%3A1",
    "/run/stored/call/round-1?key=key0",
    "/compare",
    "/compare/question?id=t1",
    "/run/stored/ask",
)
# Elements whose text is outside of their box, where the box neither scrolls nor shows it.
CUT = """[...document.querySelectorAll("body *")].filter((element) => {
  const style = getComputedStyle(element);
  const hides = style.overflowX === "hidden" || style.overflowX === "clip";
  return hides && !element.closest(".hidden, svg") && element.scrollWidth > element.clientWidth + 1;
}).map((element) => element.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    with served(site, Desk()) as address:
        yield address


@contextmanager
def served(site: Site, desk: Desk) -> Iterator[str]:
    app = create_app(site, desk=desk)
    with socket.socket() as on:
        on.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [on]})
        thread.start()
        yield f"http://127.0.0.1:{on.getsockname()[1]}"
        server.should_exit = True
        thread.join()
        desk.close()


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report as a file."""
    context = write_run(tmp_path_factory.mktemp("report"), rounds=3)
    report.run(context)
    return (context.output / "report.html").as_uri()


def test_from_the_start_page_to_the_passage_of_a_pair(chromium: Any, address: str) -> None:
    watched = Watched(chromium, address)
    page = watched.page
    page.goto(address)
    page.get_by_text("More filters").click()
    page.get_by_label("Kind").select_option("hard")
    page.get_by_role("button", name="Apply").click()
    assert page.locator(".rows tbody tr").count() == 3
    page.get_by_label("Words").fill("harbour")
    page.get_by_role("button", name="Apply").click()
    assert page.locator(".rows tbody tr").count() == 2
    page.locator(".rows tbody a").first.click()
    assert page.get_by_role("heading", name="Why this pair").is_visible()
    page.get_by_text("2 retrieved items").first.click()
    page.locator(".items a", has_text="c1").first.click()
    assert "Facts from this passage" in page.content()
    page.go_back()
    page.get_by_text("2 retrieved items").first.click()
    page.locator(".items a", has_text="c1:1").first.click()
    assert page.locator("mark").inner_text() == "Vell · country · Ostar"
    assert watched.incidents == []
    page.close()


@pytest.mark.slow
def test_keys_move_between_rows_and_records(chromium: Any, address: str) -> None:
    page = new_page(chromium)
    page.goto(f"{address}/run/stored/pairs?group=round-1")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/pair/round-1/1?group=round-1")
    page.keyboard.press("n")
    page.wait_for_url("**/pair/round-1/2?group=round-1")
    page.keyboard.press("t")
    page.wait_for_url("**tokens=yes")
    assert page.locator(".tokens .trained").count() > 20
    page.keyboard.press("u")
    page.wait_for_url("**/pairs?group=round-1")
    page.keyboard.press("/")
    page.keyboard.type("n")  # goes into the field
    assert page.get_by_label("Words").input_value() == "n"
    page.close()


def test_hostile_text_runs_and_loads_nothing(chromium: Any, address: str) -> None:
    watched = Watched(chromium, address)
    for path in (
        "/run/stored/pair/round-1/0",
        "/run/stored/trajectory/round-1/0?tokens=yes",
        "/run/stored/chunk?id=c1",
        "/run/stored/call/round-1?key=key0",
        "/run/stored/pairs?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    ):
        watched.page.goto(address + path)
        assert watched.incidents == [], path
        assert watched.page.locator("main img, main script").count() == 0, path
    watched.page.close()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 400),
        ("dark", 1300),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("light", 1300), ("dark", 400))),
    ],
)
def test_every_page_can_be_read_at_any_width_in_light_and_dark(
    chromium: Any, address: str, report_file: str, width: int, scheme: str
) -> None:
    """Only a box that scrolls is wider than the window, no box hides a part of its text, and text has enough contrast."""
    page = new_page(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    for shown in (*(f"{address}{path}" for path in PAGES), report_file):
        page.goto(shown)
        page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, shown
        assert page.evaluate(CUT) == [], shown
        assert low_contrast(page) == [], shown
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    lightness = [sum(map(int, colour[4:-1].split(", "))) for colour in colours]
    assert (lightness[0] < lightness[1]) == (scheme == "light")
    page.close()


def test_a_won_question_is_read_side_by_side_and_the_report_opens_without_errors(
    chromium: Any, address: str
) -> None:
    watched = Watched(chromium, address)
    page = watched.page
    page.goto(address)
    page.get_by_role("link", name="Report").click()
    color = page.locator("h1").evaluate("element => getComputedStyle(element).color")
    assert color == "rgb(255, 0, 0)"
    assert watched.incidents  # the report of this run is not escaped
    assert all("locked" in line for line in watched.incidents)
    watched.incidents.clear()
    page.go_back()
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("Won or lost").select_option("won")
    page.get_by_role("button", name="Compare").click()
    page.locator(".rows tbody a").first.click()
    assert page.locator(".pair .trajectory").count() == 2
    page.wait_for_load_state()  # scripts come after the rows
    page.keyboard.press("n")
    page.wait_for_url("**id=t2")
    assert watched.incidents == []
    page.close()


def test_the_report_leads_to_its_folded_sections_and_to_the_pairs(
    chromium: Any, address: str, report_file: str
) -> None:
    page = new_page(chromium)
    page.goto(report_file)
    assert not page.locator("#training figure").first.is_visible()
    page.get_by_role("link", name="Training").click()
    page.locator("#training figure").first.wait_for(state="visible")
    page.goto(f"{address}/run/stored/report.html")
    page.get_by_role("link", name="Pairs of round 2").click()
    page.wait_for_url("**/pairs?group=round-2")
    page.close()


def test_a_policy_is_asked_by_keyboard_and_its_hostile_question_is_text(
    chromium: Any, runs: Path
) -> None:
    """The page renews itself until the engine, which cannot start, has said why."""
    entry = RunEntry(NAME, runs / NAME / "store", policies=Fake(no_engine))
    with served(Site({NAME: entry}, runs / "cache"), Desk()) as address:
        watched = Watched(chromium, address, viewport={"width": 390, "height": 844})
        page = watched.page
        page.goto(f"{address}/run/{NAME}/ask")
        page.keyboard.press("/")
        page.keyboard.type(f"Where is {HOSTILE}?")
        page.keyboard.press("Control+Enter")
        page.get_by_role("alert").wait_for()
        for shown in (page.locator(".asked"), page.get_by_role("alert")):
            assert "<script>alert('owned')</script>" in shown.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert watched.incidents == []
        page.close()
