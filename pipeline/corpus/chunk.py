"""Cut documents into passages of at most n words (TeaRAG 4.1: 100 words, table 4).

Input: documents. Output: `Chunk`s, the unit of embedding and retrieval. Every word of a document is
in exactly one chunk; only white space changes. Passages with equal title and text are kept once:
the DPR Wikipedia and the contexts of the data sets repeat passages, and duplicates would fill
several of the five places of a context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from hashlib import blake2b
from itertools import pairwise

from pipeline.core.records import Chunk
from pipeline.core.text import PIECE, SPACELESS
from pipeline.corpus.raw_records import Document


def cut(text: str, max_words: int) -> list[str]:
    """Pieces of at most ``max_words`` words, in order.

    Words are separated by white space; in scripts without spaces each character is one.
    """
    words = text.split()
    if text.isascii() or not SPACELESS.search(text):
        starts = range(0, len(words), max_words)
        return [" ".join(words[start : start + max_words]) for start in starts]
    plain = " ".join(words)
    bounds = [word.start() for word in PIECE.finditer(plain)][::max_words]
    return [plain[start:end].rstrip() for start, end in pairwise([*bounds, len(plain)])]


def content_key(title: str, text: str) -> bytes:
    """A 16-byte hash of a passage's title and text; different passages have different hashes."""
    if "\0" in title:  # could be read as a shorter title and a longer text
        whole = f"{len(title)}\0{title}{text}".encode()
        return blake2b(whole, digest_size=16, person=b"title with NUL").digest()
    return blake2b(f"{title}\0{text}".encode(), digest_size=16).digest()


def chunk_documents(
    documents: Iterable[Document], max_words: int, counts: MutableMapping[str, int] | None = None
) -> Iterator[Chunk]:
    """Yield the chunks of all documents in order, each passage once.

    A repeated passage keeps the source of the first document; ``counts["duplicate_passages"]``
    is raised by 1 for each.

    A chunk's id is ``<doc_id>-<n>``. A document without an id is named after a hash of its content,
    so ids do not depend on the other documents. When two different documents share an id, the hash
    is appended to the id of the second, so that chunk ids stay unique.
    """
    seen_passages: set[bytes] = set()
    seen_ids: set[str] = set()
    for document in documents:
        title = " ".join(document.title.split())
        new_passages = []
        for number, text in enumerate(cut(document.text, max_words)):
            key = content_key(title, text)
            if key not in seen_passages:
                seen_passages.add(key)
                new_passages.append((number, text))
            elif counts is not None:
                counts["duplicate_passages"] = counts.get("duplicate_passages", 0) + 1
        if not new_passages:
            continue
        name = content_key(document.title, document.text).hex()[:12]
        doc_id = document.id or name
        while doc_id in seen_ids:
            doc_id = f"{doc_id}.{name}"
        seen_ids.add(doc_id)
        for number, text in new_passages:
            yield Chunk(f"{doc_id}-{number}", title, text, doc_id, document.source)
