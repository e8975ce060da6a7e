"""The dataset card of a directory of pairs, with which ``datasets.load_dataset`` loads it.

Input: the counts of the funnel and the pairing thresholds. Output: the text of ``README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.pairs.funnel import table

_CARD = Path(__file__).with_name("card.md")


def card(
    name: str,
    *,
    round_number: int | None,
    pairs: int,
    thresholds: Mapping[str, Any],
    counts: Mapping[str, Any],
    selection: str,
) -> str:
    """README.md with its YAML header.

    ``counts`` is the funnel; ``selection`` ends the sentence on how pairs were selected.
    """
    limits = ", ".join(f"{key} {value}" for key, value in thresholds.items() if value is not None)
    return _CARD.read_text(encoding="utf-8").format(
        name=name,
        pairs=pairs,
        round="?" if round_number is None else round_number,
        thresholds=limits,
        selection=selection,
        funnel=table(counts),
    )
