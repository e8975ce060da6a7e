"""The browser's answers to untrusted text, other sites, and requests without the token."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from pipeline.look.browse.app import create_app
from pipeline.look.browse.site import Site

HOSTILE_PAGES = [
    "/run/stored/pair/round-1/0",
    "/run/stored/pair/round-1/0?tokens=yes",
    "/run/stored/trajectory/round-1/0",
    "/run/stored/chunk?id=c1",
    "/run/stored/call/round-1?key=key0",
    "/run/stored/pairs?q=%3Cscript%3Ealert(1)%3C/script%3E",
    "/run/stored/pairs?dataset=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    "/run/stored/chunk?id=%3Cscript%3Ealert(1)%3C/script%3E",
    "/run/%3Cscript%3Ealert(1)%3C/script%3E/",
]


class Tags(HTMLParser):
    """Collects scripts, images, and attributes that run code or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.found.append(f"{tag} {name}")
            if name in ("src", "href") and re.match(r"(?i)\s*(\w+:|//)", value or ""):
                self.found.append(f"{tag} {name}={value}")
        if tag in ("img", "iframe", "object", "embed", "style"):
            self.found.append(tag)
        if tag == "script" and ("src", "/static/browse.js") not in attrs:
            self.found.append("inline script")


@pytest.mark.parametrize("address", HOSTILE_PAGES)
def test_hostile_text_adds_nothing_that_runs_or_loads(client: TestClient, address: str) -> None:
    page = client.get(address).text
    tags = Tags()
    tags.feed(page)
    assert tags.found == []
    assert "\u202e" not in page


def test_hostile_text_is_shown_as_text(client: TestClient) -> None:
    page = client.get("/run/stored/chunk?id=c1").text
    assert "&lt;script&gt;alert(&#39;owned&#39;)&lt;/script&gt;" in page
    assert r"\u202e" in page


@pytest.mark.parametrize("address", ["/run/stored/", "/run/none/", "/absent", "/static/browse.css"])
def test_every_answer_has_a_content_policy_without_inline_code(
    client: TestClient, address: str
) -> None:
    headers = client.get(address).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8766", "127.0.0.1.evil.example", "", "[", "[::1", "]"]
)
def test_a_loopback_browser_refuses_other_host_names(client: TestClient, host: str) -> None:
    response = client.get("/run/stored/", headers={"host": host})
    assert response.status_code == 421
    assert "stored" not in response.text


@pytest.mark.parametrize("host", ["localhost:8766", "127.0.0.1", "[::1]:8766"])
def test_a_loopback_browser_answers_loopback_names(client: TestClient, host: str) -> None:
    assert client.get("/run/stored/", headers={"host": host}).status_code == 200


def test_elsewhere_every_request_needs_the_token(site: Site) -> None:
    app = create_app(site, "secret-token")
    with TestClient(app, base_url="http://10.0.0.7:8766") as visitor:
        for address in ("/", "/run/stored/", "/static/browse.css", "/run/stored/?token=wrong"):
            response = visitor.get(address)
            assert response.status_code == 401
            assert "stored" not in response.text
        forged = {"cookie": "steep_browse=é".encode()}
        assert visitor.get("/run/stored/", headers=forged).status_code == 401
    with TestClient(app, base_url="http://10.0.0.7:8766", follow_redirects=False) as owner:
        first = owner.get("/run/stored/pairs?kind=easy&token=secret-token")
        assert first.status_code == 303
        assert first.headers["location"] == "/run/stored/pairs?kind=easy"
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert owner.get("/run/stored/pairs?kind=easy").status_code == 200
        evil = owner.get("http://10.0.0.7:8766//evil.example/?token=secret-token")
        assert evil.headers["location"].startswith("/evil.example")


def test_nothing_can_be_changed(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/run/stored/pairs").status_code == 405
