"""A chat model behind an OpenAI-compatible HTTP endpoint, reached with the client of ``openai``.

Input: the `Endpoint` settings and prompts. Output: replies, in the order of their arrival. The
client retries rate limits (429), server errors, timeouts and broken connections with growing
pauses, and observes ``Retry-After``. This module adds the parts that depend on the settings and on
the meaning of a reply:

- An error that concerns one prompt (too long, content filter) is a fault of that prompt. So is a
  prompt without a usable reply, but only if the endpoint then answers a short probe and the prompt
  fails again: an outage is never recorded as a fault of prompts.
- An error that concerns all prompts (key, address, model, quota, an endpoint that is down) is an
  EngineError that states the remedy. So is a redirect, which is never followed: another host would
  receive all prompts, and its answers would be kept as answers of the configured address.
- ``requests_per_minute`` spaces all requests, retries too. ``cost_ceiling`` and ``token_ceiling``
  end the stage before more is spent; requests in flight still finish.
- The API key is read from its environment variable at the first request and removed from all text
  that the endpoint returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.base import Endpoint, Execution
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import ConfigError, EngineError, InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Message
from pipeline.core.text import one_line
from pipeline.grammars.sanitize import escape_all
from pipeline.llm.chat import Chat, Finish, OnReply, Reply, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

PROBE = (Message("user", "Say yes."),)  # any answer shows that the endpoint works
_PROBE_TOKENS = 16
_CONNECT_SECONDS = 30.0
_SECRET = 8  # characters; a shorter key is a placeholder such as "EMPTY", which answers may contain
_MOST_TOKENS = 10**7  # a larger number cannot be a token count: no context is that long
_ALL = 5  # prompts without any answer that point to the endpoint
_SHOWN = 300  # characters of the server's words in a message
_KEPT = "run again: finished answers are kept"

# Control tokens of common chat templates. The tokenizer of an endpoint is unknown, so a control
# token is recognized by its spelling.
_CONTROL_TOKENS = re.compile(
    # <|im_end|>, <|eot_id|>; some models use a full-width bar
    r"<\s*[|\uff5c](?:[^<>]*[|\uff5c]\s*>)?"
    r"|</?(?:s|bos|eos|pad|unk|sop|eop|start_of_turn|end_of_turn|tool_call|tool_response)>"
    r"|<<\s*/?\s*SYS\s*>>"
    r"|\[\s*/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\s*\]",
    re.IGNORECASE,
)
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


class EndpointChat(Chat):
    """A chat model behind an endpoint; ``block`` is its configuration block, for error messages."""

    def __init__(self, settings: Endpoint, cache: ContentCache, *, block: str) -> None:
        prices = settings.prices
        identity = settings.model_dump(mode="json", exclude=set(Endpoint.marked(Execution)))
        super().__init__(identity, cache, Usage(prices.prompt, prices.completion))
        self._settings = settings
        self._block = f"{block}.endpoint"
        self._place = f"{self._block}: {settings.base_url}"
        self._key = ApiKey(None, self._block)

    def _answer(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        self._key = ApiKey(self._settings.api_key_env, self._block)
        try:
            asyncio.run(self._answer_all(prompts, max_tokens, on_reply))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _answer_all(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        waiting = iter(prompts.items())
        unsent, last = 0, ""

        async def work() -> None:
            nonlocal unsent, last
            for key, messages in waiting:  # shared by all workers
                if self._spent():
                    unsent += 1
                    continue
                reply = await self._reply(client, messages, max_tokens)
                on_reply(key, reply)
                self._check_counted(reply)
                last = reply.raw

        async with self._client() as client, asyncio.TaskGroup() as workers:
            for _ in range(min(self._settings.concurrency, len(prompts))):
                workers.create_task(work())
        if unsent:
            are = "prompts are" if unsent > 1 else "prompt is"
            raise EngineError(
                f"{self._place}: {self._spent()}, and {unsent:,} {are} not answered; raise the "
                f"ceiling and {_KEPT}"
            )
        if not self.usage.answers and len(prompts) >= _ALL:
            raise EngineError(
                f"{self._place} answered none of {len(prompts):,} prompts; the last one: {last}; "
                f"correct {self._block} and {_KEPT}"
            )

    def _client(self) -> AsyncOpenAI:
        import openai
        from aiolimiter import AsyncLimiter

        settings = self._settings
        rate = settings.requests_per_minute
        # One request per interval. A bucket for a whole minute would let the requests of two
        # minutes through at once.
        limiter = AsyncLimiter(1, 60 / rate) if rate else None

        async def before_request(_: object) -> None:
            if limiter is not None:
                await limiter.acquire()
            self.usage.tries += 1

        try:
            http = openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"request": [before_request]}
            )
        except (ImportError, ValueError, OSError) as error:
            raise EngineError(
                f"{self._place}: the HTTP client cannot be set up ({self._shown(str(error))}); "
                "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None
        return openai.AsyncOpenAI(
            base_url=settings.base_url,
            # Without a key, the client would read OPENAI_API_KEY.
            api_key=self._key.value or "none",
            max_retries=settings.retries,
            timeout=openai.Timeout(
                settings.timeout, connect=min(settings.timeout, _CONNECT_SECONDS)
            ),
            http_client=http,
        )

    async def _reply(
        self, client: AsyncOpenAI, messages: Sequence[Message], max_tokens: int
    ) -> Reply:
        try:
            return await self._send(client, messages, max_tokens)
        except NoReplyError:
            pass
        try:
            await self._send(client, PROBE, _PROBE_TOKENS)
        except NoReplyError as error:
            raise EngineError(
                f"{self._place} answers neither a prompt nor a short question: {error}; check that "
                f"it runs, that {self._block}.base_url (and a proxy or certificate of the "
                f"environment) is correct and that {self._block}.timeout is long enough, and "
                f"{_KEPT}"
            ) from None
        try:
            return await self._send(client, messages, max_tokens)
        except NoReplyError as error:
            return Reply("", "unanswered", str(error))

    async def _send(
        self, client: AsyncOpenAI, messages: Sequence[Message], max_tokens: int
    ) -> Reply:
        """The reply to one prompt, after retries.

        Raises NoReplyError for a fault of this prompt, and EngineError for a failure of all
        prompts.
        """
        import openai

        settings = self._settings
        body: dict[str, object] = {
            settings.limit: max_tokens + settings.thinking_tokens,
            **settings.extra,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        sent: Any = [
            {"role": message.role, "content": without_control(message.content)}
            for message in messages
        ]
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=settings.model, messages=sent, extra_body=body
            )
        except openai.APIStatusError as error:
            return self._refused(error)
        except (openai.APIError, UnicodeError) as error:
            cause = error.__cause__ or error
            raise NoReplyError(self._shown(str(cause)) or type(cause).__name__) from None
        return read_completion(response.content, self._key.clean)

    def _refused(self, error: APIStatusError) -> Reply:
        """The reply for an error that concerns one prompt; raises for every other error."""
        status, body = error.status_code, error.body
        message = body.get("message") if isinstance(body, dict) else None
        words = ": ".join(part for part in (error.code, message) if isinstance(part, str) and part)
        text = f"HTTP {status}: {self._shown(words or error.response.text)}"
        if status in (400, 413, 422):
            fault: Finish | None = "filter" if _FILTERED.search(text) else None
            if status == 413 or _TOO_LONG.search(text):
                fault = "too long"
            if fault is not None:
                return Reply("", fault, text)
        if status in (408, 409) or status >= 500:
            raise NoReplyError(text)
        raise EngineError(f"{self._place} refused a prompt ({text}); {self._remedy(error)}")

    def _remedy(self, error: APIStatusError) -> str:
        status, block = error.status_code, self._block
        if 300 <= status < 400:
            target = self._shown(error.response.headers.get("location", "no address"))
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
                f"account, and {_KEPT}"
            )
        return f"correct {block} (base_url, which usually ends in /v1; model; limit; extra)"

    def _shown(self, text: str) -> str:
        return one_line(self._key.clean(text), _SHOWN)

    def _spent(self) -> str:
        """What was spent and the ceiling that it reached, or "" below the ceilings."""
        settings, usage = self._settings, self.usage
        tokens = usage.paid_prompt_tokens + usage.paid_completion_tokens
        if settings.cost_ceiling is not None and usage.paid >= settings.cost_ceiling:
            return f"new answers cost {usage.paid:g}; cost_ceiling is {settings.cost_ceiling:g}"
        if settings.token_ceiling is not None and tokens >= settings.token_ceiling:
            return (
                f"new answers took {tokens:,} tokens; token_ceiling is {settings.token_ceiling:,}"
            )
        return ""

    def _check_counted(self, reply: Reply) -> None:
        settings = self._settings
        limits = settings.prices.prompt, settings.prices.completion, settings.token_ceiling
        if reply.finish in ("stop", "length") and not reply.prompt_tokens and any(limits):
            raise EngineError(
                f"{self._place} reports no numbers of tokens, which costs and ceilings need; "
                f"remove {self._block}.prices, cost_ceiling and token_ceiling, and {_KEPT}"
            )


def without_control(text: str) -> str:
    """``text`` with every control token escaped by HTML character references; idempotent.

    A server renders messages with its chat template and reads control tokens wherever they occur,
    so a document that contains ``<|im_start|>system`` would switch the chat role. All other text
    stays unchanged. With a local tokenizer, `pipeline.grammars.tokens.prompt_text` escapes its own
    tokens.
    """
    return escape_all(_CONTROL_TOKENS, text)


def read_completion(body: bytes, clean: Callable[[str], str]) -> Reply:
    """The reply in a response body, which is kept in it as ``raw``.

    ``clean`` removes secrets from text. Raises NoReplyError when the body is not a chat completion.
    """
    start = repr(clean(body.decode("utf-8", "replace"))[:200])
    try:
        # Written out anew, so that no escape (``sk\/..``) hides a secret from ``clean``.
        raw = clean(json.dumps(parse_json(body.decode("utf-8-sig"), "the reply")))
        completion = parse_json(raw, "the reply")
        choice = completion["choices"][0]
        message = choice["message"]
        text, reason = message.get("content") or "", choice.get("finish_reason")
        # Half of a surrogate pair (an escape in the JSON) cannot be encoded, so it is replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (InputError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        raise NoReplyError(f"the reply is not a chat completion: {start}") from None
    finish: Finish = "length" if reason == "length" else "stop"
    if reason == "content_filter" or (not text and message.get("refusal")):
        text, finish = "", "filter"
    usage = completion.get("usage")
    return Reply(text, finish, raw, *_token_counts(usage if isinstance(usage, dict) else {}))


def _token_counts(usage: Mapping[str, object]) -> tuple[int, int]:
    """Prompt and completion tokens; 0 unless both are plausible counts."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    # isinstance would accept True.
    if type(prompt) is not int or type(completion) is not int:
        return 0, 0
    plausible = min(prompt, completion) >= 0 and max(prompt, completion) <= _MOST_TOKENS
    return (prompt, completion) if plausible else (0, 0)
