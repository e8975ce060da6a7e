"""Annotated triples: JSONL with the sentence that states each (the closed world's truth).

Input: lines ``{"head", "relation", "tail", "title", "doc_id", "sentence"}`` and the chunks. Output:
`Extracted` triples. A triple belongs to the chunk of its document that holds its sentence; a
sentence across two chunks, to the one with more of it. The file is the user's own statement of what
is true, so a malformed line is an error, unlike in extracted data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.corpus.rows import read_rows
from pipeline.errors import InputError
from pipeline.graph.build import PARTS, Extracted
from pipeline.graph.locate import Locator, best
from pipeline.records import Chunk


def read_annotated(path: Path, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """Triples of an annotation file, in order.

    ``doc_id`` names the document; without it, or when the document was a repetition of another,
    ``title`` does. A triple of a document that is not in the corpus is passed on as rejected.
    Raises InputError with file and line for a malformed record, and when no document is known.
    """
    locator = Locator(chunks)
    found = False
    for row in read_rows(path):
        value = [row.text(part) for part in PARTS]
        sentence = row.text("sentence")
        title = str(row.find("title") or "")
        candidates = locator.of_document(str(row.find("doc_id"))) or locator.by_title(title)
        if not candidates:
            yield Extracted(None, title, value, "document not in the corpus")
            continue
        found = True
        yield Extracted(best(candidates, sentence).id, title, value)
    if not found:
        problem = "no triple's document (doc_id, title) is in the corpus; are the files of one set?"
        raise InputError.at(path, None, problem)
