"""A chat model behind an OpenAI-compatible HTTP endpoint.

Input: the `Endpoint` settings and prompts. Output: replies, in the order of their arrival.

- Rate limits (429), server errors, timeouts, broken connections and malformed replies are retried with
  growing pauses; ``Retry-After`` pauses all requests.
- An error that concerns one prompt (too long, content filter) is a fault of that prompt. A prompt
  without a usable reply in any try is sent once more after all others. It counts as faulty only if the
  endpoint then answers a short probe, so that an outage is never recorded as a fault of prompts, even
  when it affects only the last ones.
- An error that concerns all prompts (key, address, certificate, model, quota, an endpoint that is down)
  is an EngineError that states the remedy. So is a redirect, which is never followed: another host
  would receive all prompts, and its answers would be kept as those of the configured address.
- ``cost_ceiling`` and ``token_ceiling`` end the stage before more is spent. Replies without plausible
  numbers of tokens count towards them with the most tokens that request and answer can have.
- The API key is read from its environment variable at the first request and removed from all text that
  the endpoint returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.config.base import Endpoint, Execution
from pipeline.core.content_cache import ContentCache
from pipeline.core.http_body import HttpReply
from pipeline.core.records import Message
from pipeline.core.text import one_line
from pipeline.llm.api_key import ApiKey
from pipeline.llm.chat import Chat, OnReply, Reply, Usage
from pipeline.llm.chat_completions import (
    MalformedReplyError,
    error_text,
    message_json,
    prompt_fault,
    read_completion,
    retry_after,
)
from pipeline.llm.endpoint_errors import EndpointErrors
from pipeline.llm.endpoint_http import EndpointHttp, NoReply
from pipeline.llm.spending import Spending

if TYPE_CHECKING:
    from aiolimiter import AsyncLimiter
    from tenacity import RetryCallState

OUTAGE = 5  # consecutive prompts without a reply after which the endpoint counts as down
LONGEST_WAIT = 60.0  # seconds; limit of the growing pauses between retries
LONGEST_RETRY_AFTER = 300.0  # seconds; limit of the pauses that an endpoint requests
PROBE = (Message("user", "Say yes."),)  # any answer shows that the endpoint works
_PROBE_TOKENS = 16


class _RetryableError(Exception):
    """One try failed.

    ``status`` is the HTTP status, 0 without a response; ``wait`` are the seconds that the endpoint
    requests before the next try.
    """

    def __init__(self, reason: str, status: int = 0, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.status = status
        self.wait = wait


@dataclass
class _Session:
    """The client of one event loop with its rate limit (None without a limit)."""

    client: EndpointHttp
    limiter: AsyncLimiter | None
    resume: float = 0.0  # time of the event loop before which no request is sent

    async def turn(self) -> None:
        """Wait until the next request may be sent."""
        loop = asyncio.get_running_loop()
        while (remaining := self.resume - loop.time()) > 0:
            await asyncio.sleep(remaining)
        if self.limiter is not None:
            await self.limiter.acquire()

    def pause(self, seconds: float) -> None:
        """Send no request for the next ``seconds``."""
        self.resume = max(self.resume, asyncio.get_running_loop().time() + seconds)


class EndpointChat(Chat):
    """A chat model behind an endpoint.

    ``block`` is the configuration block of the settings, for error messages. ``first_wait`` is the
    pause in seconds before the second try and doubles for each further one. After ``outage``
    consecutive prompts without a reply the endpoint counts as down.
    """

    def __init__(
        self,
        settings: Endpoint,
        cache: ContentCache,
        *,
        block: str,
        first_wait: float = 1.0,
        outage: int = OUTAGE,
    ) -> None:
        prices = settings.prices
        identity = settings.model_dump(mode="json", exclude=set(Endpoint.marked(Execution)))
        super().__init__(identity, cache, Usage(prices.prompt, prices.completion))
        self._settings = settings
        self._block = f"{block}.endpoint"
        self._errors = EndpointErrors(settings, self._block)
        self._spending = Spending(settings, self.usage)
        self._first_wait = first_wait
        self._outage = outage
        self._unanswered_in_row = 0  # consecutive prompts without a reply
        self._key = ApiKey(None, self._block)

    def _answer(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        self._key = ApiKey(self._settings.api_key_env, self._block)
        earlier_answers = self.usage.answers
        replies: list[Reply] = []

        def recorded(key: bytes, reply: Reply) -> None:
            replies.append(reply)
            on_reply(key, reply)

        asyncio.run(self._answer_all(prompts, max_tokens, recorded))
        self._check_any_answered(replies, earlier_answers)

    def _check_any_answered(self, replies: Sequence[Reply], earlier_answers: int) -> None:
        """Raise EngineError when every prompt failed, which points to the endpoint."""
        if earlier_answers or any(reply.kept for reply in replies):
            return
        kinds = {reply.finish for reply in replies}
        if kinds == {"unanswered"} or len(replies) >= self._outage:
            raise self._errors.down(
                f"no answer to any of {len(replies)} prompts; last: {replies[-1].raw}"
            )

    async def _answer_all(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        session = self._open()
        retried: dict[bytes, Sequence[Message]] = {}
        unanswered: dict[bytes, Reply] = {}

        def first_pass(key: bytes, reply: Reply) -> None:
            if reply.finish != "unanswered":
                self._unanswered_in_row = 0
                on_reply(key, reply)
                return
            retried[key] = prompts[key]
            self._unanswered_in_row += 1
            if self._unanswered_in_row >= self._outage:
                raise self._errors.down(
                    f"no reply to {self._unanswered_in_row} prompts in a row; last: {reply.raw}"
                )

        def second_pass(key: bytes, reply: Reply) -> None:
            if reply.finish == "unanswered":
                unanswered[key] = reply
            else:
                on_reply(key, reply)

        try:
            await self._send_all(session, prompts, max_tokens, first_pass)
            await self._send_all(session, retried, max_tokens, second_pass)
            if unanswered:
                await self._probe(session, unanswered)
            for key, reply in unanswered.items():
                on_reply(key, reply)
            self._unanswered_in_row = 0  # the endpoint works: these prompts are faulty
        finally:
            await session.client.close()

    async def _send_all(
        self,
        session: _Session,
        prompts: Mapping[bytes, Sequence[Message]],
        max_tokens: int,
        on_reply: OnReply,
    ) -> None:
        waiting = iter(prompts.items())
        unsent = 0

        async def work() -> None:
            nonlocal unsent
            for key, messages in waiting:  # shared by all workers
                if self._spending.reached():
                    unsent += 1
                    continue
                reply = await self._reply(session, messages, max_tokens)
                self._count(reply, messages, max_tokens)
                on_reply(key, reply)

        count = min(self._settings.concurrency, len(prompts))
        workers = [asyncio.create_task(work()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if unsent:
            raise self._errors.spent(self._spending.reached(), unsent)

    async def _probe(self, session: _Session, unanswered: Mapping[bytes, Reply]) -> None:
        """Raise EngineError when the endpoint does not answer a short prompt either."""
        reply = await self._reply(session, PROBE, _PROBE_TOKENS)
        if reply.finish == "unanswered":
            raise self._errors.down(
                f"no reply to {len(unanswered)} prompts nor to a short one; last: {reply.raw}"
            )

    def _count(self, reply: Reply, messages: Sequence[Message], max_tokens: int) -> None:
        self._spending.add(reply, messages, max_tokens + self._settings.thinking_tokens)
        if reply.other_model and not self.usage.other_models:
            logging.getLogger(__name__).warning(
                "%s: model is %s, but %s answered; chat.json counts such answers",
                self._errors.place, self._settings.model, reply.other_model,
            )  # fmt: skip

    def _open(self) -> _Session:
        from aiolimiter import AsyncLimiter

        try:
            client = EndpointHttp(self._settings.base_url, self._key, self._settings.timeout)
        except NoReply as error:
            raise self._errors.unreachable(error) from None
        rate = self._settings.requests_per_minute
        # One request per interval. A bucket for a whole minute would let the requests of two
        # minutes through at once.
        return _Session(client, AsyncLimiter(1, 60 / rate) if rate else None)

    async def _reply(
        self, session: _Session, messages: Sequence[Message], max_tokens: int
    ) -> Reply:
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

        tries = AsyncRetrying(
            retry=retry_if_exception_type(_RetryableError),
            stop=stop_after_attempt(self._settings.retries + 1),
            wait=self._wait(),
            reraise=True,
        )
        try:
            async for attempt in tries:
                with attempt:
                    await session.turn()
                    reply = await self._try(session, messages, max_tokens)
        except _RetryableError as error:
            return self._unanswered(error)
        return reply

    def _wait(self) -> Callable[[RetryCallState], float]:
        from tenacity import wait_random_exponential

        growing = wait_random_exponential(multiplier=self._first_wait, max=LONGEST_WAIT)

        def seconds(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            requested = error.wait if isinstance(error, _RetryableError) else 0.0
            return requested + growing(state)

        return seconds

    async def _try(self, session: _Session, messages: Sequence[Message], max_tokens: int) -> Reply:
        self.usage.tries += 1
        settings = self._settings
        body: dict[str, object] = {
            "model": settings.model,
            "messages": [message_json(message) for message in messages],
            settings.limit: max_tokens + settings.thinking_tokens,
            **settings.extra,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        try:
            reply = await session.client.post(body)
        except NoReply as error:
            if error.remedy:
                raise self._errors.unreachable(error) from None
            raise _RetryableError(str(error)) from None
        if not 200 <= reply.status < 300:
            return self._error_reply(session, reply)
        try:
            return read_completion(reply.body, settings.model, self._key.clean)
        except MalformedReplyError as error:
            raise _RetryableError(str(error)) from None

    def _error_reply(self, session: _Session, reply: HttpReply) -> Reply:
        """The reply for an error that concerns one prompt; raises for every other error."""
        status = reply.status
        if 300 <= status < 400:
            target = self._key.clean(reply.headers.get("location", ""))
            raise self._errors.redirected(status, one_line(target, 200))
        text = error_text(reply, self._key.clean)
        temporary = status in (408, 409, 429) or status >= 500
        if temporary and "insufficient_quota" not in text:
            wait = retry_after(reply.headers)
            if wait > LONGEST_RETRY_AFTER:
                raise self._errors.paused(wait, status, text)
            if wait:
                session.pause(wait)
            raise _RetryableError(f"HTTP {status}: {text}", status, wait)
        fault = prompt_fault(status, text)
        if fault is not None:
            return Reply("", fault, f"HTTP {status}: {text}")
        raise self._errors.rejected(status, text)

    def _unanswered(self, error: _RetryableError) -> Reply:
        """The reply after the last try failed; raises EngineError for a rate limit."""
        if error.status == 429:
            raise self._errors.limited(error)
        return Reply("", "unanswered", str(error))
