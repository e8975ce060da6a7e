"""Sections of the card of a stage's pairs: how they were selected, and the funnel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.pairs.funnel import table

_SECTIONS = Path(__file__).with_name("card.md")


def card(pairs: int, selection: str, counts: Mapping[str, Any]) -> str:
    """The text; ``selection`` ends the sentence on how pairs were selected, ``counts`` is the
    funnel."""
    text = _SECTIONS.read_text(encoding="utf-8")
    return text.format(pairs=pairs, selection=selection, funnel=table(counts))
