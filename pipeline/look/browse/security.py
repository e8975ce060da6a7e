"""The protection of the browser: response headers, the tokens, and the check of the Host header.

Documents and outputs of policies are untrusted. Templates escape them; these headers make the web
browser refuse scripts, styles and images from elsewhere even if one was not escaped. On a loopback
address requests must have a trusted Host header (`retrieval.remote.hosts`), so that a page of
another site cannot read the run. On any other address every request needs the token.

Pages of other sites can make a web browser send a form here, so every form holds a random token
that only the browser's own pages show; `pipeline.knowledge.retrieval.remote.guard` refuses the
requests that the web browser marks as another site's.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pipeline.knowledge.retrieval.remote.hosts import is_trusted

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# Of pages that the run wrote, with styles inside: no script runs, and nothing is loaded.
WRITTEN_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "steep_browse"
Form: TypeAlias = Mapping[str, str]
TOKEN = "form_token"
LONGEST = 300_000  # bytes; the longest question takes 12 for each character at most
FORM_TYPE = "application/x-www-form-urlencoded"
_FIELDS = 8
Next = Callable[[Request], Awaitable[Response]]


class Guard:
    """Checks a request before it reaches a page; ``token`` is None on a loopback address."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def __call__(self, request: Request, call_next: Next) -> Response:
        """The answer to a request, with the headers of every answer."""
        response = self._refusal(request) or await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> Response | None:
        if self._token is None:
            if is_trusted(request.headers.get("host", "")):
                return None
            return PlainTextResponse(
                "This browser answers only on a loopback address, such as 127.0.0.1.", 421
            )
        given = request.query_params.get("token")
        if given is not None and self._valid(given):
            return self._with_cookie(request, given)
        if self._valid(request.cookies.get(COOKIE, "")):
            return None
        return PlainTextResponse(
            "A token is needed: open the address that steep browse printed.", 401
        )

    def _valid(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())

    def _with_cookie(self, request: Request, token: str) -> Response:
        """Redirects to the same address without the token, to keep it out of the history."""
        rest = [(name, v) for name, v in request.query_params.multi_items() if name != "token"]
        path = "/" + request.url.path.lstrip("/")  # a path of two slashes would name another host
        response = RedirectResponse(path + ("?" + urlencode(rest) if rest else ""), 303)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response


class Forms:
    """Reads forms that hold ``token``."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)

    async def read(self, request: Request) -> Form:
        """The fields of a form. Raises HTTPException for a wrong token or body."""
        try:
            fields = dict(
                parse_qsl(
                    (await request.body()).decode("ascii"), keep_blank_values=True,
                    max_num_fields=_FIELDS, errors="strict",
                )
            )  # fmt: skip
        except ValueError:
            raise HTTPException(400, "the form cannot be read; expected UTF-8 text") from None
        if not hmac.compare_digest(fields.get(TOKEN, "").encode(), self.token.encode()):
            raise HTTPException(403, "this form is not from this browser; reload its page")
        return fields
