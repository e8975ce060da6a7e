"""A chat model in this process, on any generation engine.

The engine is opened for the first prompt without a cached answer and stays open. Up to ``window``
prompts are in flight, and a finished prompt is replaced immediately, so that the engine never waits for
the slowest prompt of a batch. Decoding is greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.core.content_cache import ContentCache
from pipeline.core.records import Message
from pipeline.grammars.tokens import prompt_ids
from pipeline.llm.chat import Chat, Finish, OnReply, Reply, Usage
from pipeline.llm.engine import Engine, GenerationRequest


class EngineChat(Chat):
    """A chat model on an engine; ``identity`` must change whenever the engine's answers can change."""

    local = True

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        identity: Mapping[str, object],
        cache: ContentCache,
        *,
        window: int = 256,
    ) -> None:
        super().__init__(identity, cache, Usage())
        self._open = open_engine
        self._engine: Engine | None = None
        self._window = window

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        super().close()

    def _answer(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        if self._engine is None:
            self._engine = self._open()
        engine, waiting = self._engine, iter(prompts.items())
        lengths: dict[str, int] = {}
        more = True
        while more or engine.unfinished():
            while more and engine.unfinished() < self._window:
                key, messages = next(waiting, (None, ()))
                more = key is not None
                if key is not None:
                    ids = prompt_ids(engine.tokenizer, messages)
                    room = engine.max_model_len - len(ids)
                    if room < 1:
                        raw = f"{len(ids)} tokens; engine.max_model_len is {engine.max_model_len}"
                        on_reply(key, Reply("", "too long", raw))
                        continue
                    lengths[key.hex()] = len(ids)
                    engine.add(_request(key.hex(), ids, min(max_tokens, room)))
                    self.usage.tries += 1
            if engine.unfinished():
                for result in engine.step():
                    finish: Finish = "length" if result.finish == "length" else "stop"
                    reply = Reply(
                        result.text,
                        finish,
                        raw=result.text,
                        prompt_tokens=lengths.pop(result.id),
                        completion_tokens=len(result.token_ids),
                    )
                    on_reply(bytes.fromhex(result.id), reply)


def _request(name: str, ids: list[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        id=name,
        prompt_ids=ids,
        max_tokens=max_tokens,
        stop=(),
        temperature=0.0,
        top_p=1.0,
        seed=0,
    )
