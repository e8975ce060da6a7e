"""The passages that retrieved items come from, and where those passages come from.

Input: context items, and the directory of the stage ``corpus``. Output: the passage of each item.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.core.columns import Records
from pipeline.core.records import Chunk, ContextItem


def passage_id(item: ContextItem) -> str:
    """The id of the passage that the item is, or that its fact was extracted from."""
    return item.id if item.kind == "chunk" else item.id.rpartition(":")[0]


def passages(items: Iterable[ContextItem], corpus: Path) -> list[Chunk]:
    """The passages of the items, each once, in the order of the items.

    Raises InputError when ``corpus`` has no readable table of chunks.
    """
    ids = list(dict.fromkeys(map(passage_id, items)))
    found = {chunk.id: chunk for chunk in Records(corpus / "chunks.arrow", Chunk).where("id", ids)}
    return [found[name] for name in ids if name in found]
