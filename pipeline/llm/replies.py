"""Replies of chat models as records, which a shard writes and the joined stage reads.

A shard asks the models and writes every reply (`ReplyLog`). The stage that joins the shards runs as
an undivided stage does, and its chat models give the recorded replies instead of new ones
(`pipeline.llm.chat.Replay`). Its output is therefore the same, however the prompts were divided.
Memory: all replies of the stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.core.record_io import iterate_records, write_parquet
from pipeline.llm.chat import Chat, Finish, Replay, Reply

REPLIES = "replies.parquet"


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """One reply, with the fields of `pipeline.llm.chat.Reply`.

    ``source`` is the name of a model within its stage, or the id of a chunk. ``key`` is the digest
    of the request (`Chat.key`), in hexadecimal digits.
    """

    source: str
    key: str
    text: str
    finish: Finish
    raw: str
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, source: str, key: bytes, reply: Reply) -> ReplyRecord:
        """The record of a reply."""
        return cls(source, key.hex(), **asdict(reply))

    @property
    def reply(self) -> Reply:
        """The reply of the record."""
        return Reply(self.text, self.finish, self.raw, self.prompt_tokens, self.completion_tokens)


class ReplyExchange:
    """Where the chat models of a stage get their replies from; here from the models themselves."""

    def attach(self, name: str, chat: Chat) -> None:
        """Take part in the requests of a chat model, which has this name within its stage."""


class ReplyLog(ReplyExchange):
    """Keeps all replies of the chat models of a shard, in the order of their requests."""

    def __init__(self) -> None:
        self._records: list[ReplyRecord] = []

    def attach(self, name: str, chat: Chat) -> None:
        def record(key: bytes, reply: Reply) -> None:
            self._records.append(ReplyRecord.of(name, key, reply))

        chat.on_reply = record

    def write(self, folder: Path) -> int:
        """Write ``replies.parquet``, model by model; returns the number of replies."""
        # The judge of under-search runs beside the policy, so their replies come in a random order.
        by_model = sorted(self._records, key=lambda record: record.source)
        return write_parquet(folder / REPLIES, by_model, ReplyRecord)


class ShardReplies(ReplyExchange):
    """The replies that shards have written, for the chat models of the stage that joins them.

    With ``retry`` a prompt whose recorded reply cannot be used is sent to its endpoint again, as a
    rerun of an undivided stage does. Models in this process would give the same reply.
    """

    def __init__(self, shards: Sequence[Path], *, retry: bool = False) -> None:
        self._shards = shards
        self._retry = retry
        self._by_name: dict[str, dict[bytes, deque[Reply]]] = {}
        for shard in shards:
            for record in iterate_records(shard / REPLIES, ReplyRecord):
                of_model = self._by_name.setdefault(record.source, {})
                of_model.setdefault(bytes.fromhex(record.key), deque()).append(record.reply)

    def attach(self, name: str, chat: Chat) -> None:
        replies = self._by_name.get(name, {})
        origin = f"{self._shards[0]} and the other shards"
        chat.replay = Replay(replies, origin, retry=self._retry and not chat.local)


def replies_of(shards: Sequence[Path], *, retry: bool = False) -> ReplyExchange:
    """Replies for a stage that joins shards, or without shards from the models."""
    return ShardReplies(shards, retry=retry) if shards else ReplyExchange()
