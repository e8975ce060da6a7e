"""Which chunk a triple came from, when it is known only for the document.

Purpose: ready-made triples (annotations, OpenIE results) belong to documents or sentences, while
the graph needs the chunk. Input: the corpus' chunks. Output: for a document and a hint, one chunk.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from pipeline.records import Chunk

_WORD = re.compile(r"[^\W_]+")


class Locator:
    """Looks chunks up by document id, or by title and text."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._by_document: dict[str, list[Chunk]] = {}
        self._by_title: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            self._by_document.setdefault(chunk.doc_id, []).append(chunk)
            self._by_title.setdefault(chunk.title, []).append(chunk)

    def of_document(self, doc_id: str) -> list[Chunk]:
        """The chunks of a document, in order; empty when the corpus has none of that id."""
        return self._by_document.get(doc_id, [])

    def of_text(self, title: str, text: str) -> list[Chunk]:
        """The chunks that a text was cut into: those of its title whose text it contains.

        Independent of the chunks' size, and right for passages that two documents share.
        """
        whole = f" {' '.join(text.split())} "
        same_title = self._by_title.get(" ".join(title.split()), [])
        return [chunk for chunk in same_title if f" {chunk.text} " in whole]

    def by_title(self, title: str) -> list[Chunk]:
        """All chunks with a title."""
        return self._by_title.get(" ".join(title.split()), [])


def best(chunks: Sequence[Chunk], hint: str) -> Chunk:
    """The chunk that holds ``hint`` literally, else most of its words; the first of equals."""
    literal = " ".join(hint.split())
    for chunk in chunks:
        if literal and literal in chunk.text:
            return chunk
    wanted = _words(hint)
    counts = [len(wanted & _words(chunk.text)) for chunk in chunks]
    return chunks[counts.index(max(counts))]


@lru_cache(maxsize=4096)  # a chunk is asked about once for each triple of its document
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
