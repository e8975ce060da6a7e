"""Closed-book answers of a policy to search queries (HiPRAG, arXiv 2510.07794, 3.2).

Input: search queries and a policy. Output: the policy's greedy answer to each query as a standalone
question, without retrieval. Answers are requested in batches and cached under the policy's content,
so the samples of a question and reruns share them. A policy trained on a grammar may answer with a
whole trajectory; then the answer of that trajectory counts, as in the baseline without retrieval
(`grammars.closed_book`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.records import Message
from pipeline.llm.chat import Chat, Reply
from pipeline.rollout.grammars import Grammar
from pipeline.rollout.grammars.closed_book import parse_answer


@dataclass(frozen=True, slots=True)
class ClosedBookAnswer:
    """A policy's answer to a closed-book question; ``fault`` is the reason of a missing answer."""

    text: str
    fault: str = ""


def closed_book_answers(
    queries: Sequence[str],
    chat: Chat,
    grammar: Grammar,
    *,
    max_tokens: int = 128,
) -> dict[str, ClosedBookAnswer]:
    """The policy's answer by query; an answer cut off at ``max_tokens`` is used as it is."""
    prompts = [(query, [Message("user", query)]) for query in dict.fromkeys(queries)]
    answers = chat.ask(prompts, max_tokens=max_tokens)
    return {query: _parsed(answers[query], grammar) for query, _ in prompts}


def _parsed(answer: Reply, grammar: Grammar) -> ClosedBookAnswer:
    if answer.fault is not None:
        return ClosedBookAnswer("", f"no answer of the policy: {answer.fault}")
    text = parse_answer(grammar, answer.text).answer or ""
    cut_off = answer.finish == "length" and not text
    return ClosedBookAnswer(text, "no answer of the policy: its thoughts have no end" * cut_off)
