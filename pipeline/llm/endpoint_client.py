"""The connection to an OpenAI-compatible HTTP endpoint, and the meaning of its errors.

Input: the `Endpoint` settings. Output: a client of ``openai`` that retries rate limits (429),
server errors, timeouts and broken connections with growing pauses, and observes ``Retry-After``;
and for each error whether it concerns one request or all of them.

- An error that concerns one request (too long, content filter) is a fault of that request.
- An error that concerns all requests (key, address, model, quota) is an EngineError that states the
  remedy. So is a redirect, which is never followed: another host would receive all prompts, and its
  answers would be kept as answers of the configured address.
- ``requests_per_minute`` spaces all requests, retries too. ``cost_ceiling`` and ``token_ceiling``
  end the stage before more is spent; requests in flight still finish.
- The API key is read from its environment variable when the client is opened, and removed from all
  text that the endpoint returns.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from pipeline.config.base import Endpoint
from pipeline.core.errors import ConfigError, EngineError
from pipeline.core.text import one_line
from pipeline.llm.chat import Finish, Reply, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

KEPT = "run again: finished answers are kept"
_CONNECT_SECONDS = 30.0
_SECRET = 8  # characters; a shorter key is a placeholder such as "EMPTY", which answers may contain
_SHOWN = 300  # characters of the server's words in a message
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


class NoReplyError(Exception):
    """A prompt got no usable reply in any try."""


class ApiKey:
    """The key in the environment variable ``variable``; None stands for an endpoint without a key.

    ``block`` is the configuration block of the endpoint, for error messages. Raises ConfigError
    when the variable is not set or holds characters that no key has.
    """

    def __init__(self, variable: str | None, block: str) -> None:
        self.value = ""
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

    def clean(self, text: str) -> str:
        """``text`` with ``[key]`` in place of the key."""
        if len(self.value) < _SECRET:
            return text
        return text.replace(self.value, "[key]").replace(json.dumps(self.value)[1:-1], "[key]")


class EndpointClient:
    """Opens clients of an endpoint, counts their requests, and explains their errors.

    ``block`` is the configuration block of the endpoint, for error messages.
    """

    def __init__(self, settings: Endpoint, usage: Usage, block: str) -> None:
        self.block, self.place = block, f"{block}: {settings.base_url}"
        self._settings, self._usage = settings, usage
        self.key = ApiKey(None, block)

    def open(self) -> AsyncOpenAI:
        """A client, to close after use. Raises ConfigError without the key's variable."""
        import openai
        from aiolimiter import AsyncLimiter

        settings = self._settings
        self.key = ApiKey(settings.api_key_env, self.block)
        rate = settings.requests_per_minute
        # One request per interval. A bucket for a whole minute would let the requests of two
        # minutes through at once.
        limiter = AsyncLimiter(1, 60 / rate) if rate else None

        async def before_request(_: object) -> None:
            if limiter is not None:
                await limiter.acquire()
            self._usage.tries += 1

        try:
            http = openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"request": [before_request]}
            )
        except (ImportError, ValueError, OSError) as error:
            raise EngineError(
                f"{self.place}: the HTTP client cannot be set up ({self.shown(str(error))}); "
                "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None
        return openai.AsyncOpenAI(
            base_url=settings.base_url,
            # Without a key, the client would read OPENAI_API_KEY.
            api_key=self.key.value or "none",
            max_retries=settings.retries,
            timeout=openai.Timeout(
                settings.timeout, connect=min(settings.timeout, _CONNECT_SECONDS)
            ),
            http_client=http,
        )

    def refused(self, error: APIStatusError) -> Reply:
        """The reply for an error that concerns one prompt.

        Raises NoReplyError for an error of the server, and EngineError for every other one.
        """
        status, body = error.status_code, error.body
        message = body.get("message") if isinstance(body, dict) else None
        words = ": ".join(part for part in (error.code, message) if isinstance(part, str) and part)
        text = f"HTTP {status}: {self.shown(words or error.response.text)}"
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
            return (
                f"set {block}.requests_per_minute, lower {block}.concurrency, or add credit to the "
                f"account, and {KEPT}"
            )
        return f"correct {block} (base_url, which usually ends in /v1; model; limit; extra)"

    def shown(self, text: str) -> str:
        """The beginning of a text of the server, without the key."""
        return one_line(self.key.clean(text), _SHOWN)

    def spent(self) -> str:
        """What was spent and the ceiling that it reached, or "" below the ceilings."""
        settings, usage = self._settings, self._usage
        tokens = usage.paid_prompt_tokens + usage.paid_completion_tokens
        if settings.cost_ceiling is not None and usage.paid >= settings.cost_ceiling:
            return f"new answers cost {usage.paid:g}; cost_ceiling is {settings.cost_ceiling:g}"
        if settings.token_ceiling is not None and tokens >= settings.token_ceiling:
            return (
                f"new answers took {tokens:,} tokens; token_ceiling is {settings.token_ceiling:,}"
            )
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
