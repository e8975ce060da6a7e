"""Decompose questions with known answers into hops, by a language model over retrieved passages.

Input: questions, and the passages that each one retrieves. Output: each question with evidence and
a decomposition as MuSiQue has it, or the reason why there is none. The form of the hops is checked
as for new questions (`drafts`), the last answer must be right, and the model must answer each hop
from its passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.core.answer_metrics import f1
from pipeline.core.records import Chunk, Question
from pipeline.core.sanitize import sanitize
from pipeline.llm.chat import Chat, Reply
from pipeline.llm.json_replies import read_object
from pipeline.training.synthesis.drafts import Draft, hops_fault, prompt, read_hops
from pipeline.training.synthesis.paths import EvidencePath
from pipeline.training.synthesis.verify import NO_HOP, RIGHT, verify

_TOKENS = 768  # of a decomposition
_MOST_HOPS = 4


def decompose(
    questions: Sequence[Question], passages: Sequence[Sequence[Chunk]], chat: Chat
) -> list[Question | str]:
    """Each question with its decomposition, in order, or the reason why it has none."""
    prompts = [
        (
            str(number),
            prompt(
                "decompose", shown,
                question=sanitize(question.question), answer=sanitize(question.answers[0]),
            ),
        )
        for number, (question, shown) in enumerate(zip(questions, passages, strict=True))
    ]  # fmt: skip
    replies = chat.ask(prompts, max_tokens=_TOKENS)
    made = [
        _draft(question, shown, replies[str(number)])
        for number, (question, shown) in enumerate(zip(questions, passages, strict=True))
    ]
    reasons = iter(verify([draft for draft in made if isinstance(draft, Draft)], chat, (NO_HOP,)))
    return [
        draft if isinstance(draft, str) else next(reasons) or _decomposed(question, draft)
        for question, draft in zip(questions, made, strict=True)
    ]


def _draft(question: Question, passages: Sequence[Chunk], reply: Reply) -> Draft | str:
    value = read_object(reply.text)
    if value is None:
        return reply.fault or "unreadable reply"
    listed = value.get("hops")
    hops = read_hops(listed)
    if hops is None or len(hops) > _MOST_HOPS:
        return "unreadable reply"
    if not hops:
        return "the passages do not lead to the answer"
    chunks = tuple(_named(item.get("passage"), passages) for item in listed or ())
    if None in chunks:
        return "unreadable reply"
    path = EvidencePath(tuple(chunk for chunk in chunks if chunk is not None))
    draft = Draft(path, question.question, hops)
    if f1(draft.answer, question.answers) < RIGHT:
        return "another answer"
    return hops_fault(draft) or draft


def _named(number: Any, passages: Sequence[Chunk]) -> Chunk | None:
    within = type(number) is int and 1 <= number <= len(passages)
    return passages[number - 1] if within else None


def _decomposed(question: Question, draft: Draft) -> Question:
    made = draft.record(question.question_id, question.dataset)
    return replace(
        question,
        hop=made.hop,
        hops=made.hops,
        evidence=question.evidence or made.evidence,
        decomposition=made.decomposition,
    )
