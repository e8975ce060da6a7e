"""A headless Chromium for the tests of pages, which are skipped without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import LIMIT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium (chromium or google-chrome on PATH)")
    reason = "needs the package playwright"
    with pytest.importorskip("playwright.sync_api", reason=reason).sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


class Watched:
    """A new page that records every dialog, console message, error and request to elsewhere."""

    def __init__(self, chromium: Any, address: str, **options: Any) -> None:
        self.page = new_page(chromium, **options)
        self.incidents: list[str] = []
        self.page.on("dialog", lambda dialog: self._note("dialog", dialog.message, dialog))
        self.page.on("console", lambda message: self._note("console", message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self._requested(request.url, address))

    def _note(self, kind: str, text: str, dialog: Any = None) -> None:
        self.incidents.append(f"{kind}: {text}")
        if dialog is not None:
            dialog.dismiss()

    def _requested(self, url: str, address: str) -> None:
        if not url.startswith(address):
            self.incidents.append(f"request: {url}")


def new_page(chromium: Any, **options: Any) -> Any:
    page = chromium.new_page(**options)
    page.set_default_timeout(LIMIT * 1000)
    return page
