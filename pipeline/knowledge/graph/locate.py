"""Place triples in chunks when their source names only the document.

Ready-made triples (annotations, OpenIE results) belong to a document or a sentence, while the graph
records the chunk of every triple. Input: the chunks of the corpus. Output: the chunks of a
document, and the chunk that matches a hint best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pipeline.core.records import Chunk
from pipeline.core.text import spaced, tokenize
from pipeline.knowledge.graph.entities import display


class Locator:
    """Finds chunks by document id, by title, or by title and text. Holds row numbers, not texts."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._by_document: dict[str, list[int]] = {}
        self._by_title: dict[str, list[int]] = {}
        for row, chunk in enumerate(chunks):
            self._by_document.setdefault(chunk.doc_id, []).append(row)
            self._by_title.setdefault(chunk.title, []).append(row)

    def of_document(self, doc_id: str) -> list[Chunk]:
        """The chunks of a document, in order; empty when the corpus has no such document."""
        return [self._chunks[row] for row in self._by_document.get(doc_id, [])]

    def of_text(self, title: str, text: str) -> list[Chunk]:
        """The chunks with this title whose text is part of ``text``.

        This does not depend on the chunk size, and it finds passages that two documents share.
        """
        whole = _words(text)
        return [chunk for chunk in self.by_title(title) if _words(chunk.text) in whole]

    def by_title(self, title: str) -> list[Chunk]:
        """The chunks with a title, compared with white space collapsed."""
        return [self._chunks[row] for row in self._by_title.get(display(title), [])]


def _words(text: str) -> str:
    return f" {' '.join(spaced(text).split())} "


def best_chunk(chunks: Sequence[Chunk], hint: str) -> Chunk:
    """The first chunk that contains ``hint`` literally, else the one with most of its words.

    The first chunk wins a tie. ``chunks`` must not be empty.
    """
    literal = display(hint)
    for chunk in chunks:
        if literal and literal in chunk.text:
            return chunk
    hint_words = word_set(hint)
    counts = [len(hint_words & word_set(chunk.text)) for chunk in chunks]
    return chunks[counts.index(max(counts))]


@lru_cache(maxsize=4096)  # a chunk is compared with every triple of its document
def word_set(text: str) -> frozenset[str]:
    """The distinct words of a text (`core.text.tokenize`)."""
    return frozenset(tokenize(spaced(text)))
