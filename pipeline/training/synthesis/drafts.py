"""Drafts of questions, as a language model writes them for evidence paths, and their form.

Input: paths. Output: for each path a `Draft`, or the reason why its reply is none. A draft has a
question, and for each hop a question, its answer and the sentence that states it. The prompts are
the templates of ``prompts/``. A passage may contain anything, so it is sanitized, on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import cover_exact_match, normalize
from pipeline.core.records import Chunk, Decomposed, Message, Question
from pipeline.core.sanitize import sanitize
from pipeline.llm.chat import Chat, Reply
from pipeline.llm.json_replies import read_object
from pipeline.training.sft_data.templates import fill
from pipeline.training.synthesis.paths import EvidencePath

_TOKENS = 512  # of a draft
_WORDS = {"question": 50, "answer": 12}  # at most
_PROMPTS = Path(__file__).with_name("prompts")


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop; ``question`` has #1 for the answer of the first hop, ``evidence`` is a sentence."""

    question: str
    answer: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A question about a path, whose answer is the answer of the last hop."""

    path: EvidencePath
    question: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        return self.hops[-1].answer

    def filled(self, number: int) -> str:
        """The question of a hop, from 0, with the answers of the hops before it."""
        hop = self.hops[number]
        return fill(hop.question, [before.answer for before in self.hops[:number]]) or hop.question

    def record(self, name: str, dataset: str) -> Question:
        """The question with its evidence and decomposition, as question files have it."""
        passages = self.path.chunks
        return Question(
            question_id=name,
            dataset=dataset,
            question=self.question,
            answers=[self.answer],
            hop="multi" if len(self.hops) > 1 else "single",
            evidence=[
                f"{chunk.title}: {hop.evidence}" if chunk.title else hop.evidence
                for hop, chunk in zip(self.hops, passages, strict=True)
            ],
            hops=len(self.hops),
            decomposition=[
                Decomposed(hop.question, hop.answer, chunk.title, chunk.text)
                for hop, chunk in zip(self.hops, passages, strict=True)
            ],
        )


def prompt(template: str, passages: Sequence[Chunk], **values: str) -> list[Message]:
    """The message of a template, with sanitized passages."""
    shown = [{"title": sanitize(one.title), "text": sanitize(one.text)} for one in passages]
    text = _template(f"{template}.md.j2").render(passages=shown, **values)
    return [Message("user", text.strip())]


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(_PROMPTS)
    return Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True).get_template(
        name
    )


def draft_questions(paths: Sequence[EvidencePath], chat: Chat) -> list[Draft | str]:
    """A draft for each path, in order, or the reason why there is none."""
    prompts = [
        (
            str(number),
            prompt("two_hop", path.chunks, bridge=sanitize(path.bridge))
            if path.bridge
            else prompt("one_hop", path.chunks),
        )
        for number, path in enumerate(paths)
    ]
    replies = chat.ask(prompts, max_tokens=_TOKENS)
    return [_draft(path, replies[str(number)]) for number, path in enumerate(paths)]


def _draft(path: EvidencePath, reply: Reply) -> Draft | str:
    value = read_object(reply.text)
    if value is None:
        return reply.fault or "unreadable reply"
    hops = read_hops(value.get("hops") if len(path.chunks) > 1 else [value])
    question = value.get("question")
    if not isinstance(question, str) or hops is None or len(hops) != len(path.chunks):
        return "unreadable reply"
    draft = Draft(path, " ".join(question.split()), hops)
    return _fault(draft) or draft


def read_hops(value: Any) -> tuple[Hop, ...] | None:
    """The hops of a list of objects, or None where one is malformed."""
    hops = [_hop(item) for item in value] if isinstance(value, list) else [None]
    read = tuple(hop for hop in hops if hop is not None)
    return read if len(read) == len(hops) else None


def _hop(value: Any) -> Hop | None:
    fields = [value.get(name) for name in Hop.__slots__] if isinstance(value, dict) else []
    texts = [" ".join(field.split()) for field in fields if isinstance(field, str)]
    return Hop(*texts) if len(texts) == len(Hop.__slots__) else None


def _fault(draft: Draft) -> str | None:
    """What is wrong with the form of a draft, or None."""
    if not draft.question.endswith("?") or len(draft.question.split()) > _WORDS["question"]:
        return "not a question"
    if any(cover_exact_match(draft.question, [hop.answer]) for hop in draft.hops):
        return "answer in the question"
    return hops_fault(draft)


def hops_fault(draft: Draft) -> str | None:
    """What is wrong with the form of the hops of a draft, or None."""
    answers = [hop.answer for hop in draft.hops]
    if any(not normalize(one) or len(one.split()) > _WORDS["answer"] for one in answers):
        return "no short answer"
    filled = [fill(hop.question, answers[:number]) for number, hop in enumerate(draft.hops)]
    if None in filled or (len(answers) > 1 and filled[-1] == draft.hops[-1].question):
        return "the hops do not form a chain"
    if any(cover_exact_match(draft.filled(n), [hop.answer]) for n, hop in enumerate(draft.hops)):
        return "answer in the question of a hop"
    for hop, chunk in zip(draft.hops, draft.path.chunks, strict=True):
        if hop.evidence.casefold() not in sanitize(chunk.text).casefold():
            return "evidence not in its passage"
        if not cover_exact_match(hop.evidence, [hop.answer]):
            return "answer not in its evidence"
    return None
