"""Cached chat completions for many prompts, shared by graph extraction, SFT data and judges.

Input: prompts with ids. Output: one answer per prompt. Every reply is stored when it arrives, with its
prompt, under a key of everything it depends on (model, messages, sampling parameters). A killed run
therefore loses at most the requests in flight, a rerun sends only the missing prompts, and equal
prompts are sent once.

A failed prompt is data: its answer has a ``fault`` and no text. Only a failure that concerns all
prompts (a wrong key, an endpoint that is down) is an error.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pipeline.core.atomic import write_json
from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.errors import EngineError
from pipeline.core.progress import Progress
from pipeline.core.records import Message

if TYPE_CHECKING:
    from pipeline.llm.replies import Replay

Finish = Literal["stop", "length", "filter", "too long", "unanswered"]
OnReply = Callable[[bytes, "Reply"], None]
Self = TypeVar("Self", bound="Chat")
_MODELS = 8  # names of other models in a report
_FAULTS: dict[Finish, str] = {
    "filter": "content filter",
    "too long": "prompt too long",
    "unanswered": "no answer",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to one prompt.

    ``text`` is the generated text and ``raw`` the response as it was received. ``finish`` is "length"
    for truncated text and "filter" for a refusal of the model or its provider. With "too long" and
    "unanswered" there is no text, ``raw`` holds the cause, and the reply is not stored, so that a rerun
    sends the prompt again. ``counted`` is false where an endpoint reports no plausible numbers of
    tokens, which are 0 then. ``other_model`` is the model that answered, where it is another one than
    requested.
    """

    text: str
    finish: Finish
    raw: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counted: bool = True
    other_model: str = ""

    @property
    def kept(self) -> bool:
        """Whether the reply is stored."""
        return self.finish in ("stop", "length", "filter")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one prompt; ``finish`` is "length" for truncated text.

    ``detail`` describes a fault in the words of its source; ``raw`` is the response as it was received.
    """

    id: str
    text: str
    finish: Finish
    detail: str = ""
    raw: str = field(default="", repr=False, compare=False)

    @property
    def fault(self) -> str | None:
        """Why the answer has no text, or None when it has one."""
        return _FAULTS.get(self.finish)


@dataclass(slots=True)
class Usage:
    """Counts of distinct answers and their tokens; ``reused`` answers came from the cache.

    ``prompt_price`` and ``completion_price`` are per million tokens. ``tries`` are requests sent; the
    ``paid`` tokens exclude reused answers. ``uncounted`` answers came without plausible numbers of
    tokens and count as 0. ``other_models`` are answers by the name of their model, where it is another
    one than requested.
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
    uncounted: int = 0
    other_models: Counter[str] = field(default_factory=Counter)

    def add(self, reply: Reply, *, reused: bool) -> None:
        """Count a reply that is stored; other replies are ignored."""
        if not reply.kept:
            return
        self.answers += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.uncounted += not reply.counted
        if reply.other_model:
            self.other_models[reply.other_model] += 1
        if reused:
            self.reused += 1
        else:
            self.paid_prompt_tokens += reply.prompt_tokens
            self.paid_completion_tokens += reply.completion_tokens

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of the tokens in the currency of the prices."""
        price = prompt_tokens * self.prompt_price + completion_tokens * self.completion_price
        return round(price / 1e6, 6)

    def total(self) -> dict[str, Any]:
        """Totals over all answers, including reused ones, so that reruns report the same.

        ``uncounted`` and ``other_models`` are present only where there are such answers.
        """
        unusual = {"uncounted": self.uncounted, "other_models": self._named_models()}
        return {
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self.cost(self.prompt_tokens, self.completion_tokens),
            **{name: value for name, value in unusual.items() if value},
        }

    def report(self, folder: Path) -> None:
        """Print `line` to the stage's log and write `total` to ``chat.json``."""
        print(self.line())
        self.write(folder)

    def write(self, folder: Path) -> None:
        """Write `total` to ``chat.json``."""
        write_json(folder / "chat.json", self.total())

    def line(self) -> str:
        """One line with the requests and the cost of this process."""
        unusual = (
            f"; {self.uncounted:,} answers without numbers of tokens" if self.uncounted else ""
        )
        for model, count in self._named_models().items():
            unusual += f"; {count:,} answers of another model, {model}"
        return (
            f"chat: {self.answers:,} answers, {self.reused:,} of them from the cache; "
            f"{self.tries:,} tries; {self.paid_prompt_tokens:,} + "
            f"{self.paid_completion_tokens:,} new tokens, cost {self.paid:g}{unusual}"
        )

    def _named_models(self) -> dict[str, int]:
        """The most frequent of ``other_models``, and the number of all further answers."""
        ordered = sorted(self.other_models.items(), key=lambda item: (-item[1], item[0]))
        further = sum(count for _, count in ordered[_MODELS:])
        return dict(ordered[:_MODELS]) | ({"further models": further} if further else {})

    @property
    def paid(self) -> float:
        """The cost of the answers that did not come from the cache."""
        return self.cost(self.paid_prompt_tokens, self.paid_completion_tokens)


class Chat(ABC):
    """A chat model with a cache of its answers; a context manager that closes both.

    ``identity`` is everything besides messages and token limit that determines the answers: the model's
    content or name and address, and the sampling parameters. It is stored with each answer, so it must
    not contain secrets. ``progress`` counts every distinct prompt that has an answer. ``on_reply`` is
    called for every reply that `ask` returns, and ``replay`` takes the place of cache and model
    (`pipeline.llm.replies`). Without ``stores_prompts`` the cache holds replies only. A model that runs in
    this process is ``local``.
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
        usable: Callable[[Answer], bool] = lambda answer: True,
    ) -> dict[str, Answer]:
        """Answers of at most ``max_tokens`` tokens by prompt id, in the order of the prompts.

        An answer that is not ``usable`` is returned but not stored, so that the next run sends its
        prompt again. A stored answer that is damaged, or that belongs to another prompt, is removed and
        asked for again. Raises EngineError or another SteepError when the model is unavailable or leaves
        out a prompt; replies received before are stored.
        """
        keys = {name: self.key(messages, max_tokens) for name, messages in prompts}
        names = {key: name for name, key in keys.items()}
        if self.replay is None:
            replies = self._stored({keys[name]: messages for name, messages in prompts}, max_tokens)
        else:
            replies = self.replay.take(names)
            if self.replay.retry:
                replies = {
                    key: reply
                    for key, reply in replies.items()
                    if reply.kept and usable(answer_of(names[key], reply))
                }
        for reply in replies.values():
            self.usage.add(reply, reused=True)
        self.progress.skip(len(replies))
        missing = {keys[name]: messages for name, messages in prompts if keys[name] not in replies}

        def on_reply(key: bytes, reply: Reply) -> None:
            if reply.kept and usable(answer_of(names[key], reply)):
                self._cache.put([(key, self._record(missing[key], max_tokens, reply))])
            self.usage.add(reply, reused=False)
            self.progress.advance()
            replies[key] = reply

        if missing:
            self._answer(missing, max_tokens, on_reply)
        unanswered = [name for name, key in keys.items() if key not in replies]
        if unanswered:
            raise EngineError(
                f"the model left out {len(unanswered)} of {len(keys)} prompts, such as that of "
                f"{unanswered[0]}; run the stage again"
            )
        if self.on_reply is not None:
            for key in names:
                self.on_reply(key, replies[key])
        return {name: answer_of(name, replies[key]) for name, key in keys.items()}

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

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _read(record: bytes, request: Mapping[str, object]) -> Reply | None:
    """The reply of a stored record; None when it is damaged or answers another request."""
    try:
        stored = json.loads(record)
        reply = Reply(**stored["reply"])
        same = _json(stored.get("asked", request)) == _json(request)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    texts = isinstance(reply.text, str) and isinstance(reply.raw, str)
    tokens = isinstance(reply.prompt_tokens, int) and isinstance(reply.completion_tokens, int)
    return reply if same and texts and tokens and reply.kept else None


def answer_of(name: str, reply: Reply) -> Answer:
    """The answer to the prompt with this id."""
    detail = "" if reply.finish == "stop" else reply.raw
    return Answer(name, reply.text, reply.finish, detail, reply.raw)
