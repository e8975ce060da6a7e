"""Triples extracted from chunks by a language model (TeaRAG 4.1; paper: Qwen2.5-14B-Instruct).

Input: chunks. Output: `Extracted` triples. The prompt shows one worked example; the answer must be a
JSON list of lists. The parser forgives prose around that list and nothing else: an answer that was
cut off, holds two lists or breaks JSON is rejected as a whole and counted, because a repaired answer
would put triples into the graph that nobody wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.base import Engine
from pipeline.graph.ask import Answer, ask
from pipeline.graph.build import Extracted
from pipeline.records import Chunk, Message

MAX_TOKENS = 1024

_SYSTEM = (
    "You turn a passage into knowledge triplets. Write every fact that the passage states as "
    "[head, relation, tail]. Head and tail are names, dates, numbers or short noun phrases taken "
    "from the passage or its title; never pronouns. The relation is a short verb phrase. Answer "
    "with one JSON list of lists of three strings and nothing else; [] if there is no fact."
)
_EXAMPLE = Message(
    "user",
    "Title: Lake Tovel\n"
    "Text: Lake Tovel is a lake in Trentino, Italy, at an elevation of 1,178 m. Until 1964 it "
    "turned red every summer. The alga behind it was named by Giuseppe Largaiolli in 1907.",
)
_EXAMPLE_ANSWER = Message(
    "assistant",
    '[["Lake Tovel", "is", "lake"], ["Lake Tovel", "is located in", "Trentino"], '
    '["Trentino", "is located in", "Italy"], ["Lake Tovel", "has an elevation of", "1,178 m"], '
    '["Lake Tovel", "turned red every summer until", "1964"], '
    '["alga of Lake Tovel", "was named by", "Giuseppe Largaiolli"], '
    '["alga of Lake Tovel", "was named in", "1907"]]',
)
# "[[" or "[]", so that brackets in prose ("as [requested]") do not count as a list.
_LIST = re.compile(r"\[\s*[\[\]]")


def extraction_prompt(title: str, text: str) -> list[Message]:
    """Instruction, worked example and the passage."""
    passage = Message("user", f"Title: {title}\nText: {text}")
    return [Message("system", _SYSTEM), _EXAMPLE, _EXAMPLE_ANSWER, passage]


def extract(
    chunks: Sequence[Chunk],
    *,
    open_engine: Callable[[], Engine],
    folder: Path,
    batch: int,
    seed: int,
) -> Iterator[Extracted]:
    """Triples of every chunk, in order; see `ask` for checkpoints and errors."""
    prompts = [(chunk.id, extraction_prompt(chunk.title, chunk.text)) for chunk in chunks]
    answers = ask(
        prompts,
        open_engine=open_engine,
        folder=folder,
        batch=batch,
        max_tokens=MAX_TOKENS,
        seed=seed,
    )
    for chunk in chunks:
        yield from read_answer(chunk, answers[chunk.id])


def read_answer(chunk: Chunk, answer: Answer) -> Iterator[Extracted]:
    """The triples of one answer, or the one fault for which it is rejected."""
    values, fault = parse_list(answer.text)
    if fault is not None:
        reason = "answer cut off" if answer.finish == "length" else fault
        yield Extracted(chunk.id, chunk.title, answer.text, reason)
    else:
        for value in values:
            yield Extracted(chunk.id, chunk.title, value)


def parse_list(text: str) -> tuple[list[Any], str | None]:
    """The one JSON list of lists in a text, and None; or an empty list and what is wrong."""
    start = _LIST.search(text)
    if start is None:
        return [], "answer has no list of lists"
    try:
        values, end = json.JSONDecoder().raw_decode(text, start.start())
    except json.JSONDecodeError:
        return [], "answer is not valid JSON"
    except RecursionError:
        return [], "answer is nested too deeply"
    if _LIST.search(text, end):
        return [], "answer has more than one list"
    return values, None
