"""Words that a text may not have, and the words of the glossary to use instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

WORDS = {
    r"roll-?outs?": "trajectory (the record), or to sample (the work)",
    r"(?:reasoning|sampled|search) paths?": "trajectory",
    r"(?:policy|round)-\d+": "policy N, or round N for its samples and training",
    r"policy (?:after|of) (?:a |the )?(?:last )?round": "policy N",
    r"(?:SFT|cold-start|base) policy": "policy 0 (SFT), or the base model",
    r"cover EM": "CEM",
    r"gold evidence": "golden evidence",
    r"pairing bins?": "pairing outcome",
}
_WORDS = {re.compile(rf"(?<![\w/.-]){old}(?![\w/-])", re.IGNORECASE): WORDS[old] for old in WORDS}
# In a column of policies, and wherever one row or column has results of SFT and of rounds.
_NOT_A_POLICY = re.compile(r"(?:after )?(?:SFT|round[ -]\d+|start)", re.IGNORECASE)


def wrong_words(text: str) -> Iterator[str]:
    """A sentence for each word of a text without code that the glossary has another word for."""
    for word, better in _WORDS.items():
        for found in word.finditer(text):
            around = " ".join(text[max(0, found.start() - 30) : found.end() + 30].split())
            yield f"{found[0]!r} in {around!r}: write {better}"


def wrong_titles(rows: list[list[str]]) -> Iterator[str]:
    """A sentence for each title of a policy in a table that is not that of the glossary.

    ``rows`` are the cells of the table, the header first. Titles are in a column called policy, or
    in a row or column that has both "SFT" and a round.
    """
    columns = list(zip(*rows, strict=False))
    named = [column for column in columns if column[0].casefold() in ("policy", "trained policy")]
    mixed = [
        line
        for line in (*rows[:1], *columns)
        if {"sft", "round 1"} <= {cell.casefold() for cell in line}
    ]
    for line in [*named, *mixed]:
        for cell in line:
            if _NOT_A_POLICY.fullmatch(cell):
                yield f"{cell!r} is no title of a policy: write Policy 0 (SFT), Policy 1, …"
