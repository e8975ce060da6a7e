"""A hop's question with earlier answers filled in, as a fluent question (TeaRAG 4.3.1, step 3).

Input: MuSiQue's hop question and the answers of the hops before it. Output: one line, with rare
exceptions a question. The paper rewrites with Qwen2.5-72B-Instruct (``rewriter: llm``); the default fills
in and tidies up, which needs no model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.sft_data.templates import relation_question

_PLACEHOLDER = re.compile(r"#(\d+)")
_SPACE_BEFORE = re.compile(r"\s+(?=[?.,;:!])|\s+(?='s\b)|\s+(?=’s\b)")


def fill(question: str, answers: Sequence[str]) -> str | None:
    """``#n`` replaced by the answer of hop n; None when it refers to this hop or a later one."""
    numbers = [int(number) for number in _PLACEHOLDER.findall(question)]
    if any(not 1 <= number <= len(answers) for number in numbers):
        return None
    return _PLACEHOLDER.sub(lambda match: answers[int(match.group(1)) - 1], question)


def fluent(filled: str) -> str:
    """One tidy question: relation-style hops worded, capital first, question mark last.

    A hop that is a request ("Name the mayor of Rome.") keeps its full stop.
    """
    text = " ".join(filled.split())
    subject, arrows, relation = text.partition(">>")
    if arrows and subject.strip() and relation.strip():
        text = relation_question(_tidy(subject), relation.strip())
    text = _tidy(text)
    if not text.endswith("."):
        text = text.rstrip(" ?") + "?"
    return text[:1].upper() + text[1:]


def _tidy(text: str) -> str:
    return _SPACE_BEFORE.sub("", text).strip()
