"""Chat models: many prompts in, replies out, each stored as soon as it arrives.

Graph extraction, SFT data, judges and closed-book answers use them. Input: prompts with ids.
Output: one reply per prompt. A reply is stored with its prompt, under a key of everything it
depends on (model, messages, sampling parameters). A killed run therefore loses at most the requests
in flight, a rerun sends only the missing prompts, and equal prompts are sent once. `EngineChat`
runs a model in this process; `pipeline.llm.endpoint` sends prompts to a server.

A failed prompt is data: its reply has a ``fault`` and no text. Only a failure that concerns all
prompts (a wrong key, an endpoint that is down) is an error.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import TypeAdapter

from pipeline.config.base import EngineConfig
from pipeline.core.atomic import write_json
from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.errors import StoreError
from pipeline.core.model_files import find_model
from pipeline.core.progress import Progress
from pipeline.core.records import Message
from pipeline.llm.engine import Engine, GenerationRequest
from pipeline.llm.tokens import prompt_ids

Finish = Literal["stop", "length", "filter", "too long", "unanswered"]
OnReply = Callable[[bytes, "Reply"], None]
_FAULTS: dict[Finish, str] = {
    "filter": "content filter",
    "too long": "prompt too long",
    "unanswered": "no answer",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to one prompt.

    ``text`` is the generated text and ``raw`` the whole response. ``finish`` is "length"
    for truncated text and "filter" for a refusal of the model or its provider. With "too long" and
    "unanswered" there is no text, ``raw`` holds the cause, and the reply is not stored, so that a
    rerun sends the prompt again. The numbers of tokens are 0 where an endpoint reports none.
    """

    text: str
    finish: Finish
    raw: str = field(repr=False)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def kept(self) -> bool:
        """Whether the reply is stored."""
        return self.finish in ("stop", "length", "filter")

    @property
    def fault(self) -> str | None:
        """Why the reply has no text, or None when it has one."""
        return _FAULTS.get(self.finish)


_REPLY = TypeAdapter(Reply)


@dataclass(slots=True)
class Usage:
    """Counts of distinct answers and their tokens; ``reused`` answers came from the cache.

    ``prompt_price`` and ``completion_price`` are per million tokens. ``tries`` are requests sent;
    the ``paid`` tokens are of all their replies, probes and unusable replies included.
    """

    prompt_price: float = 0.0
    completion_price: float = 0.0
    answers: int = 0
    reused: int = 0
    tries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    paid_prompt_tokens: int = 0
    paid_completion_tokens: int = 0

    def add(self, reply: Reply, *, reused: bool) -> None:
        """Count a reply that is stored; other replies are ignored."""
        if not reply.kept:
            return
        self.answers += 1
        self.reused += reused
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens

    def pay(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens of a reply that a request got."""
        self.paid_prompt_tokens += prompt_tokens
        self.paid_completion_tokens += completion_tokens

    def total(self) -> dict[str, Any]:
        """Totals over all answers, including reused ones, so that reruns report the same."""
        return {
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self._cost(self.prompt_tokens, self.completion_tokens),
        }

    def write(self, folder: Path) -> None:
        """Write `total` to ``chat.json``."""
        write_json(folder / "chat.json", self.total())

    def line(self) -> str:
        """One line with the requests and the cost of this process."""
        return (
            f"chat: {self.answers:,} answers, {self.reused:,} of them from the cache; "
            f"{self.tries:,} tries; {self.paid_prompt_tokens:,} + "
            f"{self.paid_completion_tokens:,} new tokens, cost {self.paid:g}"
        )

    @property
    def paid(self) -> float:
        """The cost of the requests of this process."""
        return self._cost(self.paid_prompt_tokens, self.paid_completion_tokens)

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        price = prompt_tokens * self.prompt_price + completion_tokens * self.completion_price
        return round(price / 1e6, 6)


@dataclass(eq=False)
class Replay:
    """Recorded replies by the key of their request, in the order in which they came.

    ``origin`` names their source in messages.
    """

    replies: dict[bytes, deque[Reply]]
    origin: str
    retry: bool = False

    def take(self, keys: Iterable[bytes]) -> dict[bytes, Reply]:
        """The next recorded reply to each request, then the last again; with ``retry`` the last.

        Raises StoreError when a request has none.
        """
        taken = {}
        for key in keys:
            replies = self.replies.get(key)
            if not replies:
                raise StoreError(
                    f"{self.origin} hold no reply to a prompt of this stage, because the model's "
                    "files or the prompts have changed; rerun the stage with --force"
                )
            if self.retry:
                taken[key] = replies[-1]
            else:
                taken[key] = replies.popleft() if len(replies) > 1 else replies[0]
        return taken


class Chat(ABC):
    """A chat model with a cache of its answers; a context manager that closes both.

    ``identity`` is everything besides messages and token limit that determines the answers: the
    model's content or name and address, and the sampling parameters. It is stored with each answer,
    so it must not contain secrets. ``progress`` counts every distinct prompt that has an answer.
    ``on_reply`` is called for every reply that `ask` returns, and ``replay`` takes the place of
    cache and model (`pipeline.llm.replies`). Without ``stores_prompts`` the cache holds replies
    only. A model that runs in this process is ``local``.
    """

    local: ClassVar[bool] = False

    def __init__(self, identity: Mapping[str, object], cache: ContentCache, usage: Usage) -> None:
        self.identity = dict(identity)
        self.usage = usage
        self.progress = Progress()
        self.on_reply: OnReply | None = None
        self.replay: Replay | None = None
        self.stores_prompts = True
        self._cache = cache

    def ask(
        self,
        prompts: Sequence[tuple[str, Sequence[Message]]],
        *,
        max_tokens: int,
        usable: Callable[[str, Reply], bool] = lambda name, reply: True,
    ) -> dict[str, Reply]:
        """Replies of at most ``max_tokens`` tokens by prompt id, in the order of the prompts.

        A reply that is not ``usable`` is returned but not stored, so that the next run sends its
        prompt again. A stored answer that is damaged, or that belongs to another prompt, is removed
        and asked for again. Raises EngineError or another SteepError when the model is unavailable;
        replies received before are stored.
        """
        keys = {name: self.key(messages, max_tokens) for name, messages in prompts}
        names = {key: name for name, key in keys.items()}

        def storable(key: bytes, reply: Reply) -> bool:
            return reply.kept and usable(names[key], reply)

        if self.replay is None:
            replies = self._stored({keys[name]: messages for name, messages in prompts}, max_tokens)
        else:
            replies = self.replay.take(names)
            if self.replay.retry:
                replies = {key: reply for key, reply in replies.items() if storable(key, reply)}
        for reply in replies.values():
            self.usage.add(reply, reused=True)
        self.progress.skip(len(replies))
        missing = {keys[name]: messages for name, messages in prompts if keys[name] not in replies}

        def on_reply(key: bytes, reply: Reply) -> None:
            if storable(key, reply):
                self._cache.put([(key, self._record(missing[key], max_tokens, reply))])
            self.usage.add(reply, reused=False)
            self.progress.advance()
            replies[key] = reply

        if missing:
            self._answer(missing, max_tokens, on_reply)
        if self.on_reply is not None:
            for key in names:
                self.on_reply(key, replies[key])
        return {name: replies[key] for name, key in keys.items()}

    def _stored(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int
    ) -> dict[bytes, Reply]:
        """The stored replies of these prompts; damaged ones are removed and reported."""
        replies: dict[bytes, Reply] = {}
        damaged = []
        for key, record in self._cache.get([*prompts]).items():
            reply = _read(record, self._request(prompts[key], max_tokens))
            if reply is None:
                damaged.append(key)
            else:
                replies[key] = reply
        if damaged:
            print(f"{self._cache.path}: {len(damaged)} damaged answers are asked for again")
            self._cache.remove(damaged)
        return replies

    @abstractmethod
    def _answer(
        self, prompts: Mapping[bytes, Sequence[Message]], max_tokens: int, on_reply: OnReply
    ) -> None:
        """Call ``on_reply`` once for every key of ``prompts``, as soon as its reply arrives."""

    def close(self) -> None:
        """Free the model and the cache."""
        self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def key(self, messages: Sequence[Message], max_tokens: int) -> bytes:
        """The cache key of an answer: a digest of everything that determines it."""
        return digest(_json(self.identity), _json(_plain(messages)), str(max_tokens))

    def _record(self, messages: Sequence[Message], max_tokens: int, reply: Reply) -> bytes:
        request = self._request(messages, max_tokens)
        asked = {"asked": request} if self.stores_prompts else {}
        return _json({**asked, "reply": asdict(reply)}).encode("ascii")

    def _request(self, messages: Sequence[Message], max_tokens: int) -> dict[str, object]:
        return {**self.identity, "max_tokens": max_tokens, "messages": _plain(messages)}


class EngineChat(Chat):
    """A chat model in this process, on any generation engine, with greedy decoding.

    ``identity`` must change whenever the engine's answers can change. The engine is opened for the
    first prompt without a cached answer and stays open. Up to ``window`` prompts are in flight, and
    a finished prompt is replaced immediately, so that the engine never waits for the slowest prompt
    of a batch.
    """

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
                    engine.add(
                        GenerationRequest(
                            key.hex(), ids, min(max_tokens, room), stop=(), temperature=0.0,
                            top_p=1.0, seed=0,
                        )
                    )  # fmt: skip
                    self.usage.tries += 1
            if engine.unfinished():
                for result in engine.step():
                    finish: Finish = "length" if result.finish == "length" else "stop"
                    tokens = lengths.pop(result.id), len(result.token_ids)
                    self.usage.pay(*tokens)
                    reply = Reply(result.text, finish, result.text, *tokens)
                    on_reply(bytes.fromhex(result.id), reply)


def chat_cache(cache_dir: Path | str) -> ContentCache:
    """The cache of chat answers below ``cache_dir``: one for all runs, for its owner alone."""
    return ContentCache(Path(cache_dir) / "chat.sqlite", private=True)


def engine_identity(model: str, engine: EngineConfig, hashes: Path) -> dict[str, object]:
    """The cache identity of an engine's greedy answers: the model's content and numeric settings.

    ``hashes`` is the file that stores content hashes of local models.
    """
    content = model
    directory = Path(find_model(model))
    if directory.is_dir():
        stored = ContentHashes(hashes)
        content = stored.of(directory)
        stored.save()
    return {
        "model": content,
        **engine.model_dump(include={"kind", "dtype", "max_model_len"}),
        "temperature": 0.0,
    }


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [asdict(message) for message in messages]


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _read(record: bytes, request: Mapping[str, object]) -> Reply | None:
    """The reply of a stored record; None when it is damaged or answers another request."""
    try:
        stored = json.loads(record)
        reply = _REPLY.validate_python(stored["reply"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return reply if reply.kept and stored.get("asked", request) == request else None
