"""A model behind ``/completions`` of an OpenAI-compatible server as an engine, for a teacher.

Input: requests in token ids of the student's tokenizer. Output: the segments that the server wrote,
tokenized by the student's tokenizer, without log-probabilities. The server gets the decoded prompt,
which is in the student's chat template, so the teacher must know this template and its control
tokens; a larger model of the same family does. A begin-of-text token is left to the server.

A segment that ended at a stop string gets this string, which servers leave out. They name it as
``stop_reason`` (vLLM) or ``matched_stop`` (SGLang); without it, a stop string and the end of a text
look alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pipeline.config.base import Endpoint
from pipeline.core.errors import EngineError, InputError
from pipeline.core.input_files import parse_json
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.grammars.tokens import decode, segment_text
from pipeline.llm.chat import Reply, Usage
from pipeline.llm.endpoint import first_choice, token_counts
from pipeline.llm.endpoint_client import KEPT, EndpointClient, NoReplyError
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SEEDS = 2**31  # servers take seeds of 32 bits


class CompletionsEngine(Engine):
    """Sends requests from a thread of its own, at most ``concurrency`` at once.

    ``block`` is the configuration block of the endpoint, for error messages. Raises ConfigError
    when the variable of the API key is not set.
    """

    def __init__(
        self,
        settings: Endpoint,
        tokenizer: Tokenizer,
        max_model_len: int,
        *,
        block: str,
        shards: int = 1,
    ) -> None:
        self.tokenizer, self.max_model_len = tokenizer, max_model_len
        self.usage = Usage(settings.prices.prompt, settings.prices.completion)
        self._settings = settings
        self._connection = EndpointClient(settings, self.usage, block, shards)
        self._client: AsyncOpenAI = self._connection.open(self._read)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._ended: SimpleQueue[GenerationResult | Exception] = SimpleQueue()
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, request: GenerationRequest) -> None:
        self._open += 1
        asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)

    def unfinished(self) -> int:
        return self._open

    def _advance(self) -> list[GenerationResult]:
        results: list[GenerationResult] = []
        while not results or not self._ended.empty():
            ended = self._ended.get()
            if isinstance(ended, Exception):
                raise ended
            results.append(ended)
        self._open -= len(results)
        return results

    def close(self) -> None:
        """Close the connections; requests in flight are given up."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        print(self.usage.line())

    async def _close(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def _answer(self, request: GenerationRequest) -> None:
        try:
            async with self._slots:
                self._ended.put(await self._segment(request))
        except Exception as error:  # noqa: BLE001 - raised where the results are awaited
            self._ended.put(error)

    async def _segment(self, request: GenerationRequest) -> GenerationResult:
        connection = self._connection
        if spent := connection.spent():
            raise EngineError(f"{connection.place}: {spent}; raise the ceiling and {KEPT}")
        try:
            reply, stop = await self._send(request)
        except NoReplyError as error:
            raise EngineError(
                f"{connection.place} gives no text: {error}; check that it runs and has "
                f"/completions, correct {connection.block} and {KEPT}"
            ) from None
        self.usage.add(reply, reused=False)
        connection.check_counted(reply)
        if reply.finish == "stop" and stop is None and request.stop:
            raise EngineError(
                f"{connection.place} does not say which stop string ended a text (stop_reason of "
                "vLLM, matched_stop of SGLang); use such a server, or format: tools, which needs "
                "no stop strings"
            )
        ended = reply.finish == "stop" and stop not in request.stop
        text = reply.text + (stop if stop in request.stop and stop else "")
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if ended and self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        finish: Any = "eos" if ended else "stop" if reply.finish == "stop" else "length"
        return GenerationResult(
            request.id, ids, [None] * len(ids), segment_text(self.tokenizer, ids, finish), finish
        )

    async def _send(self, request: GenerationRequest) -> tuple[Reply, str | None]:
        """The reply, and the string that ended it: "" for the end of the text, None if unknown."""
        import openai

        settings, connection = self._settings, self._connection
        body: dict[str, Any] = {
            "skip_special_tokens": False,  # of vLLM and SGLang: a call may be among them
            **settings.extra,
            settings.limit: request.max_tokens + settings.thinking_tokens,
        }
        try:
            response = await self._client.completions.with_raw_response.create(
                model=settings.model, prompt=self._prompt(request.prompt_ids),
                temperature=request.temperature, top_p=request.top_p, seed=request.seed % _SEEDS,
                stop=list(request.stop) or None, extra_body=body,
            )  # fmt: skip
        except openai.APIStatusError as error:
            return connection.refused(error), ""
        except (openai.APIError, UnicodeError) as error:
            cause = error.__cause__ or error
            raise NoReplyError(connection.shown(str(cause)) or type(cause).__name__) from None
        return self._read(response.content)

    def _read(self, body: bytes) -> tuple[Reply, str | None]:
        return read_text_completion(body, self._connection.key.clean)

    def _prompt(self, ids: list[int]) -> str:
        text, begin = decode(self.tokenizer, ids), self.tokenizer.bos_token_id
        return text if begin is None else text.removeprefix(decode(self.tokenizer, [begin]))


def read_text_completion(body: bytes, clean: Callable[[str], str]) -> tuple[Reply, str | None]:
    """The reply in a response body, and the string that ended it.

    The string is "" where the server names an end token or none was asked for, None where it does
    not tell. Raises NoReplyError when the body is not a text completion.
    """
    try:
        completion = parse_json(clean(body.decode("utf-8-sig")), "the reply")
        choice, finish = first_choice(completion)
        text = choice["text"]
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (InputError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        start = repr(clean(body.decode("utf-8", "replace"))[:200])
        raise NoReplyError(f"the reply is not a text completion: {start}") from None
    usage = completion.get("usage")
    counts = token_counts(usage if isinstance(usage, dict) else {})
    return Reply(text, finish, "", *counts), _stop(choice)


def _stop(choice: Mapping[str, Any]) -> str | None:
    named = [choice[name] for name in ("stop_reason", "matched_stop") if name in choice]
    if not named:
        return None
    return named[0] if isinstance(named[0], str) else ""
