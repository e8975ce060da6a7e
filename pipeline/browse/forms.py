"""The forms of the browser, which alone answer POST.

Input: a request of the web browser. Output: the fields of its form. Pages of other sites can make a
web browser send a form here, so every form holds a random token that only the browser's own pages
show, and requests that the web browser marks as another site's are refused. Bodies are short, and
questions are untrusted text.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pipeline.browse.asking import Asked, Desk
from pipeline.browse.site import OpenRun
from pipeline.core.errors import InputError
from pipeline.rollout.answering import question_record

Form: TypeAlias = Mapping[str, str]
TOKEN = "form_token"
LONGEST = 300_000  # bytes; the longest question takes 12 for each character at most
_TYPE = "application/x-www-form-urlencoded"
_FIELDS = 8


class Forms:
    """Reads forms that hold ``token``."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)

    async def read(self, request: Request) -> Form:
        """The fields of a form. Raises HTTPException for another site, a wrong token or body."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(403, "this form came from a page of another site")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
            raise HTTPException(415, f"expected a form ({_TYPE})")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LONGEST:
                raise HTTPException(413, f"the form is longer than {LONGEST:,} bytes")
        try:
            fields = dict(
                parse_qsl(
                    body.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS,
                    errors="strict",
                )
            )  # fmt: skip
        except ValueError:
            raise HTTPException(400, "the form cannot be read; expected UTF-8 text") from None
        if not hmac.compare_digest(fields.get(TOKEN, "").encode(), self.token.encode()):
            raise HTTPException(403, "this form is not from this browser; reload its page")
        return fields


def take_question(run: OpenRun, desk: Desk, form: Form) -> Asked:
    """Give the question of the form to the desk.

    Raises InputError for an unusable question, and for a policy that the page does not offer.
    """
    question = question_record(form.get("question", ""))
    if run.policies is None:
        raise InputError(run.not_asked)
    offered, note = run.policies.names()
    names = list(dict.fromkeys(filter(None, (form.get("policy"), form.get("other")))))
    if not names:
        raise InputError("no policy is chosen; choose one")
    for name in names:
        if name not in offered:
            known = ", ".join(offered)
            raise InputError(
                f"there is no policy {name!r:.60}; expected one of {known}. {note}".strip()
            )
    return desk.ask(run.name, question, names, run.policies)
