"""The method that suits a set of questions: evidence and judges decide what can be rewarded.

Input: questions, and whether a model may judge searches. Output: the name of a method, and the
reason with numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.records import Question


def suited_method(questions: Sequence[Question], *, judges: bool) -> tuple[str, str]:
    """The method, and the reason as part of a sentence."""
    count = sum(bool(question.evidence) for question in questions)
    have = f"{count:,} of {len(questions):,} questions have evidence"
    if judges:
        return "hiprag", "a model judges whether each search was needed"
    if 2 * count > len(questions):
        return "tearag", f"{have}, so the process reward can compare it with the retrieved texts"
    return "search-r1", f"{have}, so the outcome and the format are rewarded"
