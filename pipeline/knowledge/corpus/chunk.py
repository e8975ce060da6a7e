"""Cut documents into passages of at most n words (TeaRAG 4.1: 100 words, table 4).

Input: documents. Output: `Chunk`s, the unit of embedding and retrieval. Every word of a document is
in exactly one chunk; only white space changes. Where lines mean something (rows of tables, code),
they stay, and a passage ends before a line that it would cut, if that makes it no shorter than
three quarters. Passages with equal title and text are kept once:
the DPR Wikipedia and the contexts of the data sets repeat passages, and duplicates would fill
several of the five places of a context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, MutableMapping
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path

from pipeline.core.atomic import open_table
from pipeline.core.records import Chunk
from pipeline.core.text import PIECE, SPACELESS
from pipeline.knowledge.corpus.raw_records import Document

_ROWS = 16_384  # chunks per row group and record batch: about 30 MB of Python objects


def cut(text: str, max_words: int, *, lines: bool = False) -> list[str]:
    """Pieces of at most ``max_words`` words, in order; ``lines`` keeps lines and indentation.

    Words are separated by white space; in scripts without spaces each character is one.
    """
    if lines and "\n" in text:
        return list(_cut_lines(text, max_words))
    words = text.split()
    if text.isascii() or not SPACELESS.search(text):
        starts = range(0, len(words), max_words)
        return [" ".join(words[start : start + max_words]) for start in starts]
    plain = " ".join(words)
    bounds = [word.start() for word in PIECE.finditer(plain)][::max_words]
    return [plain[start:end].rstrip() for start, end in pairwise([*bounds, len(plain)])]


def _cut_lines(text: str, max_words: int) -> Iterator[str]:
    words = [word.span() for word in PIECE.finditer(text)]
    first, start = 0, 0
    while first < len(words):
        last = min(first + max_words, len(words))  # the first word of the next piece
        if last < len(words):
            shortest = max(last - max_words // 4, first + 1)
            begins = (
                number
                for number in range(last, shortest - 1, -1)
                if "\n" in text[words[number - 1][1] : words[number][0]]
            )
            last = next(begins, last)
        end = words[last - 1][1]
        space, piece = text[start : words[first][0]], text[words[first][0] : end]
        indented = start == 0 or "\n" in space
        yield (space.rpartition("\n")[2] if indented else "") + piece
        first, start = last, end


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
        for number, text in enumerate(cut(document.text, max_words, lines=document.lines)):
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


def write_chunks(folder: Path, chunks: Iterable[Chunk]) -> int:
    """Write both tables of chunks in groups of rows and return the number of chunks.

    Chunks are streamed, because the full Wikipedia does not fit in memory.
    """
    import pyarrow as pa

    names = [field.name for field in dataclasses.fields(Chunk)]
    schema = pa.schema([(name, pa.string()) for name in names])
    folder.mkdir(parents=True, exist_ok=True)
    total, remaining = 0, iter(chunks)
    with open_table(folder, "chunks", schema, names) as write:
        while group := list(islice(remaining, _ROWS)):
            write({name: [getattr(chunk, name) for chunk in group] for name in names})
            total += len(group)
    return total
