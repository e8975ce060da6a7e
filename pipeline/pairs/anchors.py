"""Names of pairs and questions in exported pages, so that the report can link to them.

``steep browse --export`` writes a page with these anchors, and the report links to the page
`EXPORT` beside it. An anchor is made of letters and digits, because ids are untrusted text.
"""

from __future__ import annotations

from pipeline.core.content_cache import digest

EXPORT = "pairs.html"


def pair_anchor(round: int, kind: str, chosen_id: str, rejected_id: str) -> str:
    """The anchor of a pair."""
    return f"pair-{digest(str(round), kind, chosen_id, rejected_id).hex()[:16]}"


def question_anchor(question_id: str) -> str:
    """The anchor of a question, which is at its first pair."""
    return f"question-{digest(question_id).hex()[:16]}"
