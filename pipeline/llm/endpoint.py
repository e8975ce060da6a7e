"""A chat model behind an OpenAI-compatible HTTP endpoint.

Input: the `Endpoint` settings and prompts. Output: replies, in the order of their arrival.
`pipeline.llm.endpoint_client` retries, explains errors and observes the limits. A prompt without a
usable reply is a fault of this prompt, but only if the endpoint then answers a short probe and the
prompt fails again: an outage is never recorded as a fault of prompts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.base import Endpoint, Execution
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import EngineError, InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Message
from pipeline.core.sanitize import escape_all
from pipeline.llm.chat import Chat, Finish, OnReply, Reply, Usage
from pipeline.llm.endpoint_client import KEPT, EndpointClient, NoReplyError, token_counts

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PROBE = (Message("user", "Say yes."),)  # any answer shows that the endpoint works
_PROBE_TOKENS = 16
_ALL = 5  # prompts without any answer that point to the endpoint
# Values of ``finish_reason``: of the API, and of services that imitate it.
_FINISHES: dict[str, Finish] = {
    **dict.fromkeys(("length", "max_tokens", "model_length", "MAX_TOKENS"), "length"),
    **dict.fromkeys(("content_filter", "refusal", "safety", "SAFETY"), "filter"),
}
_BROKEN = ("error", "abort", "cancelled")  # the model wrote no whole answer

# Control tokens of common chat templates. The tokenizer of an endpoint is unknown, so a control
# token is recognized by its spelling.
_CONTROL_TOKENS = re.compile(
    # <|im_end|>, <|eot_id|>; some models use a full-width bar
    r"<\s*[|\uff5c](?:[^<>]*[|\uff5c]\s*>)?"
    r"|</?(?:s|bos|eos|pad|unk|sop|eop|start_of_turn|end_of_turn|tool_call|tool_response)>"
    r"|<<\s*+/?\s*+SYS\s*>>"
    r"|\[\s*+/?\s*+(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\s*\]",
    re.IGNORECASE,
)


class EndpointChat(Chat):
    """A chat model behind an endpoint; ``block`` is its configuration block, for error messages."""

    def __init__(
        self, settings: Endpoint, cache: ContentCache, *, block: str, shards: int = 1
    ) -> None:
        prices = settings.prices
        identity = settings.model_dump(mode="json", exclude=set(Endpoint.marked(Execution)))
        super().__init__(identity, cache, Usage(prices.prompt, prices.completion))
        self._settings = settings
        self._client = EndpointClient(settings, self.usage, f"{block}.endpoint", shards)

    def _answer(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        try:
            asyncio.run(self._answer_all(prompts, max_tokens, on_reply))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _answer_all(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        waiting, shared = iter(prompts.items()), self._client
        unsent, last = 0, ""

        async def work() -> None:
            nonlocal unsent, last
            for key, messages in waiting:  # shared by all workers
                reply = None if shared.spent() else await self._reply(client, messages, max_tokens)
                if reply is None:
                    unsent += 1
                    continue
                on_reply(key, reply)
                shared.check_counted(reply)
                last = reply.raw

        async with shared.open(self._read) as client, asyncio.TaskGroup() as workers:
            for _ in range(min(self._settings.concurrency, len(prompts))):
                workers.create_task(work())
        if unsent:
            are = "prompts are" if unsent > 1 else "prompt is"
            raise EngineError(
                f"{shared.place}: {shared.spent()}, and {unsent:,} {are} not answered; raise the "
                f"ceiling and {KEPT}"
            )
        if not self.usage.answers and len(prompts) >= _ALL:
            raise EngineError(
                f"{shared.place} answered none of {len(prompts):,} prompts; the last one: {last}; "
                f"correct {shared.block} and {KEPT}"
            )

    async def _reply(
        self, client: AsyncOpenAI, messages: Sequence[Message], max_tokens: int
    ) -> Reply | None:
        """The reply to one prompt; None if unusable replies were paid for up to the ceiling."""
        try:
            return await self._send(client, messages, max_tokens)
        except NoReplyError:
            if self._client.spent():
                return None
        try:
            await self._send(client, PROBE, _PROBE_TOKENS)
        except NoReplyError as error:
            block = self._client.block
            raise EngineError(
                f"{self._client.place} answers neither a prompt nor a short question: {error}; "
                f"check that it runs, that {block}.base_url (and a proxy or certificate of the "
                f"environment) is correct and that {block}.timeout is long enough, and "
                f"{KEPT}"
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
            return self._client.refused(error)
        except (openai.APIError, UnicodeError) as error:
            cause = error.__cause__ or error
            raise NoReplyError(self._client.shown(str(cause)) or type(cause).__name__) from None
        return self._read(response.content)

    def _read(self, body: bytes) -> Reply:
        return read_completion(body, self._client.key.clean)


def without_control(text: str) -> str:
    """``text`` with every control token escaped by HTML character references; idempotent.

    A server renders messages with its chat template and reads control tokens wherever they occur,
    so a document that contains ``<|im_start|>system`` would switch the chat role. All other text
    stays unchanged. With a local tokenizer, `pipeline.llm.tokens.prompt_text` escapes its own
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
        choice, reason = first_choice(completion)
        message = choice["message"]
        text = message.get("content") or ""
        # Half of a surrogate pair (an escape in the JSON) cannot be encoded, so it is replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (InputError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        raise NoReplyError(f"the reply is not a chat completion: {start}") from None
    finish = reason
    if reason == "filter" or (not text and message.get("refusal")):
        text, finish = "", "filter"
    return Reply(text, finish, raw, *token_counts(completion))


def first_choice(completion: Any) -> tuple[Any, Finish]:
    """The first choice of a completion, and why it ended.

    Raises LookupError or TypeError for anything else, and for a completion that holds an error.
    """
    choice = completion["choices"][0]
    reason = choice.get("finish_reason")
    if completion.get("error") or choice.get("error") or reason in _BROKEN:
        raise LookupError("error")
    return choice, _FINISHES.get(reason, "stop") if isinstance(reason, str) else "stop"
