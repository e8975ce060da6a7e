"""A hop's question with earlier answers filled in, as a fluent question (TeaRAG 4.3.1, step 3).

Input: MuSiQue's hop question and the answers of the earlier hops. Output: a one-line subquery. The
paper rewrites with Qwen2.5-72B-Instruct (``rewriter: llm``). The default fills in the placeholders
and cleans up the text, without a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.sft_data.templates import relation_question

_PLACEHOLDER = re.compile(r"#(\d+)")
_SPACE_BEFORE = re.compile(r"\s+(?=[?.,;:!])|\s+(?='s\b)|\s+(?=’s\b)")


def fill(question: str, answers: Sequence[str]) -> str | None:
    """The question with ``#n`` replaced by ``answers[n - 1]``.

    None when a placeholder refers to this hop or a later one.
    """
    numbers = _PLACEHOLDER.findall(question)
    # int() refuses thousands of digits.
    if any(len(number) > 9 or not 1 <= int(number) <= len(answers) for number in numbers):
        return None
    return _PLACEHOLDER.sub(lambda match: answers[int(match.group(1)) - 1], question)


def fluent(filled: str) -> str:
    """The question on one line with a capital first letter and a question mark.

    A relation-style hop ("Hello Love >> performer") becomes a question. A request ("Name the mayor
    of Rome.") keeps its period.
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
