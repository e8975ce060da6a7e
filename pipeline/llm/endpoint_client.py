"""The connection to an OpenAI-compatible HTTP endpoint, and the meaning of its errors.

Input: the `Endpoint` settings. Output: a client of ``openai`` that retries rate limits (429),
server errors, timeouts and broken connections with growing pauses, and observes ``Retry-After``;
and for each error whether it concerns one request or all of them.

- An error that concerns one request (too long, content filter) is a fault of that request.
- An error that concerns all requests (key, address, model, quota) is an EngineError that states the
  remedy. So is a redirect, which is never followed: another host would receive all prompts, and its
  answers would be kept as answers of the configured address.
- A reply is read within bounds of time (``total_timeout``) and size. A reply of status 200 that
  holds an error, such as a rate limit, counts as one with the status of this error; a reply that
  cannot be read counts as an error of the server. Another model's name in a reply is noted once.
- ``requests_per_minute`` spaces all requests, retries too. ``cost_ceiling`` and ``token_ceiling``
  end the stage before more is spent, on probes and unusable replies too; requests in flight still
  finish.
- The API key is read from its environment variable when the client is opened, and removed from all
  text that the endpoint returns. The variables of ``openai`` are not sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.config.base import Endpoint
from pipeline.core.errors import ConfigError, EngineError, InputError
from pipeline.core.input_files import parse_json
from pipeline.core.text import one_line
from pipeline.llm.chat import Finish, Reply, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_log = logging.getLogger(__name__)
KEPT = "run again: finished answers are kept"
_CONNECT_SECONDS = 30.0
_SECRET = 8  # characters; a shorter key is a placeholder such as "EMPTY", which answers may contain
_SHOWN = 300  # characters of the server's words in a message
_MOST_TOKENS = 10**7  # a larger number cannot be a token count: no context is that long
_MOST_BYTES = 16 * 2**20  # of a reply, decompressed: an answer of 100,000 tokens has half a MiB
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|maximum (?:context|model|input)|reduce the length"
    r"|(?:prompt|input|request|message)\b[^.]{0,40}(?:too long|too large|longer than|exceeds)"
    r"|string_above_max_length",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content[ _](?:filter|policy|management)|usage policy|safety system|invalid_prompt"
    r"|ResponsibleAIPolicyViolation",
    re.IGNORECASE,
)
# The status that an error without a number means; routers send such errors with status 200.
_MEANINGS = (
    (400, _TOO_LONG),
    (400, _FILTERED),
    *(
        (status, re.compile(words, re.IGNORECASE))
        for status, words in (
            (429, r"rate.?limit|too.?many|overload|capacity|throttl|exhaust|quota|busy|slow.?down"
                  r"|temporar|try again"),
            (401, r"api.?key|unauthori[sz]ed|authenticat|invalid.?token"),
            (402, r"credit|billing|payment|balance"),
            (403, r"forbidden|permission|access denied"),
            (404, r"not.?found|does not exist|no such|unknown.?model"),
            (400, r"(?:invalid|bad).?request|unsupported|validation"),
        )
    ),
)  # fmt: skip
# The rest of a model's dated name, such as gpt-4o-2024-08-06 for gpt-4o.
_VERSION = re.compile(r"(?:[-@:](?:latest|preview|v?\d[\d.-]*))+")


class NoReplyError(Exception):
    """A prompt got no usable reply in any try."""


class ApiKey:
    """The key in the environment variable ``variable``; None stands for an endpoint without a key.

    ``block`` is the configuration block of the endpoint, for error messages. Raises ConfigError
    when the variable is not set or holds characters that no key has.
    """

    def __init__(self, variable: str | None, block: str) -> None:
        self.value, self._written = "", re.compile(r"(?!)")
        if variable is None:
            return
        self.value = os.environ.get(variable, "").strip()
        if not self.value:
            raise ConfigError(
                f"{block}.api_key_env is {variable}, which is not set; export it, or remove "
                "api_key_env for an endpoint without a key"
            )
        if not (self.value.isascii() and self.value.isprintable()):
            raise ConfigError(
                f"{variable} holds characters that are not allowed in a key; export it again"
            )
        if len(self.value) >= _SECRET:
            self._written = re.compile("".join(map(_any_form, self.value)), re.IGNORECASE)

    def clean(self, text: str) -> str:
        """``text`` with ``[key]`` in place of the key, also where it is escaped."""
        return self._written.sub("[key]", text)


class EndpointClient:
    """Opens clients of an endpoint, counts their requests, and explains their errors.

    ``block`` is the configuration block of the endpoint, for error messages. One of ``shards`` of a
    stage may spend its part of the ceilings.
    """

    def __init__(self, settings: Endpoint, usage: Usage, block: str, shards: int = 1) -> None:
        self.block, self.place = block, f"{block}: {settings.base_url}"
        self._settings, self._usage, self._shards = settings, usage, shards
        self._models: set[str] = set()  # that were noted
        self.key = ApiKey(None, block)

    def open(self, read: Callable[[bytes], object]) -> AsyncOpenAI:
        """A client, to close after use.

        ``read`` raises NoReplyError for a body that is no reply. Raises ConfigError without the
        key's variable, and for an endpoint that may cost money and has no ceiling.
        """
        import openai
        from aiolimiter import AsyncLimiter

        settings = self._settings
        if settings.unbounded:
            raise ConfigError(
                f"{self.place} may cost money and has no ceiling; set {self.block}.token_ceiling, "
                f"or {self.block}.prices and cost_ceiling"
            )
        self.key = ApiKey(settings.api_key_env, self.block)
        rate = settings.requests_per_minute
        # One request per interval. A bucket for a whole minute would let the requests of two
        # minutes through at once.
        limiter = AsyncLimiter(1, 60 / rate) if rate else None

        client = self

        class Bounded(openai.DefaultAsyncHttpxClient):
            async def send(self, request: Any, **options: Any) -> Any:
                if limiter is not None:
                    await limiter.acquire()
                client._usage.tries += 1
                sent = super().send(request, **{**options, "stream": True})
                return await client._received(sent, request, read)

        try:
            http = Bounded(follow_redirects=False)
        except (ImportError, ValueError, OSError) as error:
            raise EngineError(
                f"{self.place}: the HTTP client cannot be set up ({self.shown(str(error))}); "
                "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None
        opened = openai.AsyncOpenAI(
            base_url=settings.base_url,
            # Without a key, the client would read OPENAI_API_KEY.
            api_key=self.key.value or "none",
            max_retries=settings.retries,
            timeout=openai.Timeout(
                settings.timeout, connect=min(settings.timeout, _CONNECT_SECONDS)
            ),
            http_client=http,
        )
        # It has read OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS, which may hold the
        # key of another service in place of this one's.
        opened.organization = opened.project = None
        opened._custom_headers = {}
        return opened

    async def _received(
        self, sent: Awaitable[Any], request: Any, read: Callable[[bytes], object]
    ) -> Any:
        """The whole response, with the status that its content means.

        Raises APIError, which is not retried, when it is too long or takes too long.
        """
        import openai

        most, content, response = self._settings.longest_seconds, bytearray(), None
        try:
            async with asyncio.timeout(most):
                response = await sent
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        size = f"the reply has more than {_MOST_BYTES // 2**20} MiB"
                        raise openai.APIError(size, request, body=None)
        except TimeoutError:
            late = f"the reply did not end within {most:g} seconds (total_timeout)"
            raise openai.APIError(late, request, body=None) from None
        finally:
            if response is not None:
                await response.aclose()
        status, body = response.status_code, bytes(content)
        with suppress(InputError, UnicodeDecodeError):
            found = parse_json(body.decode("utf-8-sig"), "the reply")
            self._usage.pay(*token_counts(found))
        if response.is_success:
            try:
                read(body)
                self._note_model(found.get("model"))
            except NoReplyError as error:
                status, stated = stated_error(body) or (502, {"message": str(error)})
                body = json.dumps({"error": stated}).encode()
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if not name.startswith(("content-", "transfer-"))
        ]
        if status >= 500 and self.spent():
            headers.append(("x-should-retry", "false"))
        return type(response)(
            status, headers=headers, content=body, request=request,
            extensions={"sent": response.status_code},
        )  # fmt: skip

    def _note_model(self, answered: object) -> None:
        """Note once that another model than the configured one answers."""
        asked = self._settings.model
        if isinstance(answered, str) and answered not in self._models:
            self._models.add(answered)
            if not _is_same(asked, answered):
                _log.warning(
                    "%s answered as model %s where %s was asked",
                    self.place, self.shown(answered), asked,
                )  # fmt: skip

    def refused(self, error: APIStatusError) -> Reply:
        """The reply for an error that concerns one prompt.

        Raises NoReplyError for an error of the server, and EngineError for every other one.
        """
        status, body = error.status_code, error.body
        message = body.get("message") if isinstance(body, dict) else None
        words = ": ".join(part for part in (error.code, message) if isinstance(part, str) and part)
        sent = error.response.extensions.get("sent", status)
        text = f"HTTP {sent}: {self.shown(words or error.response.text)}"
        if status in (400, 413, 422):
            fault: Finish | None = "filter" if _FILTERED.search(text) else None
            if status == 413 or _TOO_LONG.search(text):
                fault = "too long"
            if fault is not None:
                return Reply("", fault, text)
        if status in (408, 409) or status >= 500:
            raise NoReplyError(text)
        raise EngineError(f"{self.place} refused a prompt ({text}); {self._remedy(error)}")

    def _remedy(self, error: APIStatusError) -> str:
        status, block = error.status_code, self.block
        if 300 <= status < 400:
            target = self.shown(error.response.headers.get("location", "no address"))
            return (
                f"it redirects to {target}, and redirects are not followed, because the prompts "
                f"would go there; correct {block}.base_url"
            )
        if status in (401, 403):
            variable = self._settings.api_key_env or f"the variable of {block}.api_key_env"
            return f"set {variable} to a key that is valid for this model"
        if status in (402, 429):
            after = error.response.headers.get("retry-after")
            wait = f"wait (retry-after: {self.shown(after)}), " if after else ""
            return (
                f"{wait}set {block}.requests_per_minute, lower {block}.concurrency, or add credit "
                f"to the account, and {KEPT}"
            )
        return f"correct {block} (base_url, which usually ends in /v1; model; limit; extra)"

    def shown(self, text: str) -> str:
        """The beginning of a text of the server, without the key."""
        return one_line(self.key.clean(text), _SHOWN)

    def spent(self) -> str:
        """What was spent and the ceiling that it reached, or "" below the ceilings."""
        settings, usage, parts = self._settings, self._usage, self._shards
        tokens = usage.paid_prompt_tokens + usage.paid_completion_tokens
        cost, most = settings.cost_ceiling, settings.token_ceiling
        each = f" for {parts} shards together" if parts > 1 else ""
        if cost is not None and usage.paid * parts >= cost:
            return f"new replies cost {usage.paid:g}; cost_ceiling is {cost:g}{each}"
        if most is not None and tokens * parts >= most:
            return f"new replies took {tokens:,} tokens; token_ceiling is {most:,}{each}"
        return ""

    def check_counted(self, reply: Reply) -> None:
        """Raises EngineError for a reply without numbers of tokens that ceilings need."""
        settings = self._settings
        limits = settings.prices.prompt, settings.prices.completion, settings.token_ceiling
        if reply.finish in ("stop", "length") and not reply.prompt_tokens and any(limits):
            raise EngineError(
                f"{self.place} reports no numbers of tokens, which costs and ceilings need; "
                f"remove {self.block}.prices, cost_ceiling and token_ceiling, and {KEPT}"
            )


def stated_error(body: bytes) -> tuple[int, dict[str, Any]] | None:
    """The status that an error in a body means, and the error in the API's form; None without one.

    Services write it as ``error`` or ``detail``, as a text or an object, in a list, or in a choice.
    An error that says nothing known is one of the server (500).
    """
    try:
        found = parse_json(body.decode("utf-8-sig"), "the reply")
    except (InputError, UnicodeDecodeError):
        return None
    while isinstance(found, list):
        found = found[0] if found else None
    if not isinstance(found, dict):
        return None
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    of_choice = choice.get("error") if isinstance(choice, dict) else None
    top = {name: found[name] for name in ("message", "detail", "errors", "type") if found.get(name)}
    stated = found.get("error") or of_choice or top
    if not stated:
        return None
    places = [place for place in (stated, found) if isinstance(place, dict)]
    codes = [str(place.get(name)) for place in places for name in ("code", "status", "status_code")]
    words = json.dumps([stated, top])
    status = next((int(code) for code in codes if re.fullmatch("[45][0-9]{2}", code)), None)
    if status is None:
        status = next((meant for meant, regex in _MEANINGS if regex.search(words)), 500)
    message = stated.get("message") if isinstance(stated, dict) else stated
    code = stated.get("code") if isinstance(stated, dict) else None
    return status, {"code": code, "message": message if isinstance(message, str) else words}


def token_counts(body: Any) -> tuple[int, int]:
    """Prompt and completion tokens of a reply; 0 unless both are plausible counts."""
    match body:
        case {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}:
            # isinstance would accept True.
            whole = type(prompt) is type(completion) is int
            if whole and min(prompt, completion) >= 0 and max(prompt, completion) <= _MOST_TOKENS:
                return prompt, completion
    return 0, 0


def _any_form(character: str) -> str:
    """A pattern of a character: itself, or its escape in JSON or in an address."""
    code = f"{ord(character):02x}"
    return rf"(?:\\{{0,3}}(?:{re.escape(character)}|u00{code})|%{code})"


def _is_same(asked: str, answered: str) -> bool:
    """Whether two names are of one model: equal but for folders, case, dates and versions."""
    names = (name.rpartition("/")[2].lower().removesuffix("-latest") for name in (asked, answered))
    one, other = names
    return other.startswith(one) and (one == other or bool(_VERSION.fullmatch(other[len(one) :])))
