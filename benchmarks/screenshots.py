"""Take the pictures of ``docs/images/`` from a finished run, in headless Chromium.

``python -m benchmarks.screenshots --config C`` starts ``steep browse``, follows its links as a
reader would, and opens the run's report. It refuses a run whose outputs are stale, and an error
page.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.app import main
from pipeline.cli.options import Chosen, with_configuration
from pipeline.core.errors import DependencyError, StoreError

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1280
SETTLED = 300  # milliseconds for fonts and images
ENGINE_STARTS = 240_000  # milliseconds at most, on a loaded machine


@with_configuration
def take(
    chosen: Chosen,
    output: Annotated[Path, typer.Option(help="folder of the pictures")] = IMAGES,
) -> None:
    """Take all pictures of the documentation."""
    task = chosen.task()
    run = task.run_settings.run_dir
    report = run / "report.html"
    if not report.is_file():
        raise StoreError(f"{report}: no such file; finish the run with steep run")
    output.mkdir(parents=True, exist_ok=True)
    with _served(task.options) as address, _chromium() as browser:
        for name, picture in PICTURES.items():
            scheme, width, height = SIZES.get(name, ("light", WIDTH, 900))
            size = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.set_default_timeout(60_000)
            statuses: list[int] = []
            page.on("response", lambda response, kept=statuses: kept.append(response.status))
            page.goto(report.absolute().as_uri() if name == "report" else address)
            picture(page)
            if max(statuses, default=200) >= 400:
                raise StoreError(f"{page.url}: steep browse answered with status {max(statuses)}")
            if page.locator(".stale").count():
                raise StoreError(f"{page.url}: outputs of {run} are stale; run steep run")
            page.wait_for_timeout(SETTLED)
            _save(page.screenshot(), output / f"{name}.png")
            page.close()
            typer.echo(str(output / f"{name}.png"))


def _save(picture: bytes, path: Path) -> None:
    """Write a picture with a palette, which takes a third of the bytes."""
    from PIL import Image

    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(path, optimize=True)


def _pairs(page: Any) -> None:
    _tab(page, "Pairs")


def _pair(page: Any) -> None:
    """The first pair of the kind hard, or else easy; most pairs are of the kind format."""
    page.get_by_text("More filters").click()
    kinds = page.get_by_label("Kind")
    found = [kind for kind in ("hard", "easy") if kinds.locator(f'option[value="{kind}"]').count()]
    if found:
        kinds.select_option(found[0])
        page.get_by_role("button", name="Apply").click()
    page.locator(".rows tbody a").first.click()
    page.get_by_role("heading", name="Why this pair").wait_for()


def _trajectory(page: Any) -> None:
    _pair(page)
    page.locator("h2 .detail a").last.click()  # the rejected side
    page.get_by_role("heading", name="Step 1").wait_for()


def _tokens(page: Any) -> None:
    _trajectory(page)
    page.keyboard.press("t")
    page.locator(".tokens").first.scroll_into_view_if_needed()
    page.locator(".tokens").first.evaluate("element => window.scrollTo(0, element.offsetTop - 60)")


def _passage(page: Any) -> None:
    _trajectory(page)
    page.get_by_text("retrieved items").first.click()
    page.locator('a[href*="/chunk?"]').first.click()


def _compare(page: Any) -> None:
    """The first policy beside the last policy."""
    _tab(page, "Compare")
    for label, pick in (("First round or policy", 0), ("Second round or policy", -1)):
        choice = page.get_by_label(label)
        titles = choice.locator("option").all_inner_texts()
        policies = [title for title in titles if title.strip().startswith("Policy")]
        choice.select_option(label=policies[pick].strip())
    page.get_by_role("button", name="Compare").click()
    page.locator(".rows tbody a").first.wait_for()  # a comparison without rows shows nothing


def _ask(page: Any) -> None:
    """The answer of the last policy to the question of the pair; the engine starts for it."""
    _pair(page)
    question = page.locator("h1").inner_text()
    _tab(page, "Ask")
    page.get_by_label("Question", exact=True).fill(question)
    page.get_by_role("button", name="Ask").click()
    page.locator(".answer").first.wait_for(timeout=ENGINE_STARTS)


def _start(page: Any) -> None:
    page.locator("h1").wait_for()


def _tab(page: Any, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).first.click()


PICTURES: dict[str, Callable[[Any], None]] = {
    "browse-pairs": _pairs,
    "browse-pair": _pair,
    "browse-tokens": _tokens,
    "browse-passage": _passage,
    "browse-compare": _compare,
    "browse-ask": _ask,
    "browse-phone": _pair,
    "report": _start,
}
SIZES = {
    "browse-pair": ("light", WIDTH, 1180),
    "browse-tokens": ("light", WIDTH, 700),
    "browse-passage": ("light", WIDTH, 640),
    "browse-compare": ("light", WIDTH, 700),
    "browse-phone": ("dark", 390, 844),
    "report": ("light", 1200, 950),
}


@contextmanager
def _served(options: list[str]) -> Iterator[str]:
    """The address of ``steep browse`` over the run."""
    command = [sys.executable, "-m", "pipeline.cli", "browse", *options, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()  # empty when the server ended; its error is on stderr
        try:
            if not line:
                raise StoreError("steep browse has ended; its message is above")
            yield line.split()[0]
        finally:
            server.terminate()


@contextmanager
def _chromium() -> Iterator[Any]:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise DependencyError(
            "the pictures need the package playwright; pip install playwright"
        ) from None
    if executable is None:
        raise DependencyError(
            f"the pictures need one of {', '.join(BROWSERS)} on PATH; install Chromium"
        )
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        yield browser
        browser.close()


if __name__ == "__main__":
    main(lambda: typer.run(take))
