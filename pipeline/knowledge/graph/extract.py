"""Extract triplets from chunks with a language model (TeaRAG 4.1; the paper uses
Qwen2.5-14B-Instruct).

Input: chunks and an `ExtractionPrompt` (`TRIPLETS` here, `graph.facts.FACTS` for n-ary facts).
Output: `Extracted` items, which `graph.build` or `graph.facts` checks. The model must answer with a
JSON list of lists, or of objects with the names of their parts (`llm.json_replies`). Every complete
item counts. A piece that was cut off or is not valid JSON is rejected and counted, because a
repaired piece could add triples to the graph that the model did not write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.core.records import Chunk, Message
from pipeline.knowledge.graph.build import Extracted
from pipeline.llm.chat import Chat, Reply
from pipeline.llm.json_replies import Dropped, read_items

# Chunks per call of the model, which bounds the memory. At the end of a call the engine runs half
# empty: 1 % of the time, and 5 to 10 % with 4,096.
BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class ExtractionPrompt:
    """The prompt for one kind of item: an instruction and one worked example."""

    system: str
    example: str  # the example's user message
    answer: str  # the example's assistant message
    max_tokens: int  # of the answer

    def messages(self, title: str, text: str) -> list[Message]:
        """The chat messages for one passage."""
        return [
            Message("system", self.system),
            Message("user", self.example),
            Message("assistant", self.answer),
            Message("user", f"Title: {title}\nText: {text}"),
        ]


EXAMPLE = (
    "Title: Lake Tovel\n"
    "Text: Lake Tovel is a lake in Trentino, Italy, at an elevation of 1,178 m. Until 1964 it "
    "turned red every summer. The alga behind it was named by Giuseppe Largaiolli in 1907."
)
TRIPLETS = ExtractionPrompt(
    system=(
        "You turn a passage into knowledge triplets. Write every fact that the passage states as "
        "[head, relation, tail]. Head and tail are names, dates, numbers or short noun phrases "
        "taken from the passage or its title; never pronouns. The relation is a short verb phrase. "
        "Answer with one JSON list of lists of three strings and nothing else; [] if there is no "
        "fact."
    ),
    example=EXAMPLE,
    answer=(
        '[["Lake Tovel", "is", "lake"], ["Lake Tovel", "is located in", "Trentino"], '
        '["Trentino", "is located in", "Italy"], ["Lake Tovel", "has an elevation of", "1,178 m"], '
        '["Lake Tovel", "turned red every summer until", "1964"], '
        '["alga of Lake Tovel", "was named by", "Giuseppe Largaiolli"], '
        '["alga of Lake Tovel", "was named in", "1907"]]'
    ),
    max_tokens=1024,
)
# Names of an item's parts in a model's objects, in the order of the list.
_FORMS = (
    ("head", "relation", "tail"),
    ("subject", "predicate", "object"),
    ("subject", "relation", "object"),
    ("source", "relation", "target"),
    ("fact", "entities"),
    ("text", "entities"),
)


def extract(
    chunks: Sequence[Chunk], *, chat: Chat, prompt: ExtractionPrompt = TRIPLETS
) -> Iterator[Extracted]:
    """The items of the model's answer for every chunk, in order.

    Every answer is stored under a key of its prompt as soon as it arrives, so that an interrupted
    extraction is resumed. Raises the errors of `Chat.ask`, and StoreError when two chunks have the
    same id, because one of them would get the answer of the other.
    """
    for start in range(0, len(chunks), BLOCK):
        block = chunks[start : start + BLOCK]
        answers = ask_about(block, chat, prompt)
        for chunk in block:
            yield from read_answer(chunk, answers[chunk.id])


def ask_about(chunks: Sequence[Chunk], chat: Chat, prompt: ExtractionPrompt) -> dict[str, Reply]:
    """The model's answer about each chunk, by its id. Raises what `extract` raises."""
    repeated = [name for name, n in Counter(chunk.id for chunk in chunks).items() if n > 1]
    if repeated:
        raise StoreError(f"chunk {repeated[0]} occurs twice; run the corpus stage again")
    prompts = [(chunk.id, prompt.messages(chunk.title, chunk.text)) for chunk in chunks]
    return chat.ask(prompts, max_tokens=prompt.max_tokens)


def read_answer(chunk: Chunk, answer: Reply) -> Iterator[Extracted]:
    """The items of one answer, and an item with a fault for each piece that is none."""
    if answer.fault is not None:
        yield Extracted(chunk.id, chunk.title, answer.raw, answer.fault)
        return
    items = list(read_items(answer.text))
    for number, item in enumerate(items, start=1):
        if isinstance(item, Dropped):
            cut = answer.finish == "length" and number == len(items)
            fault = "answer cut off" if cut else item.reason
            yield Extracted(chunk.id, chunk.title, item.text, fault)
        else:
            yield Extracted(chunk.id, chunk.title, _as_list(item))


def answer_fault(answer: Reply) -> str | None:
    """Why nothing of an answer can be read; None when something can, or the list is empty."""
    items = [] if answer.fault else list(read_items(answer.text))
    if any(not isinstance(item, Dropped) for item in items):
        return None
    return answer.fault or next((item.reason for item in items), None)


def _as_list(value: Any) -> Any:
    """The parts of an object that names them, in order; other values are unchanged."""
    if isinstance(value, dict):
        parts = {name.strip().casefold(): part for name, part in value.items()}
        for form in _FORMS:
            if parts.keys() >= set(form):
                return [parts[name] for name in form]
    return value
