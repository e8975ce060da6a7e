"""Sources of triples and n-ary facts other than a language model.

Each reader takes chunks, and a file or triplets where it needs one, and yields `Extracted` items in
the order of its source; `graph.build` and `graph.facts` check them. The language model is in
`graph.extract`.

- `read_annotated`, `read_annotated_facts`: annotation files with the sentence that states each item
  (the closed world's truth).
- `read_openie`: triples that a language model extracted from each document (HippoRAG's files).
- `link_titles`: links between passages that mention each other's titles.
- `group_triplets`: facts made of the triplets of one sentence.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, Place
from pipeline.core.records import Chunk, Triplet
from pipeline.core.row_files import member_rows
from pipeline.core.text import PIECE
from pipeline.knowledge.corpus.raw_records import Document, RawRecord, read_rows, titled
from pipeline.knowledge.graph.build import PARTS, Extracted
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.graph.locate import Locator, best_chunk, word_set
from pipeline.knowledge.graph.names import NameIndex

RELATION_WORDS = 8  # longest relation that `link_titles` takes from a sentence
PLAIN_RELATION = "mentions"  # the relation when no words precede the mention
_EDGE = " \t,;:()[]\"'“”–—-"
# ".", "!" or "?" before white space and a capital, a letter of a caseless script or an opening
# quote; or the full stops of East Asia.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z\s]|[\"'“])|(?<=[。！？])\s*(?=\S)")


def read_annotated(path: Path, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """Triples of a JSONL file of ``{"head", "relation", "tail", "title", "doc_id", "sentence"}``.

    ``doc_id`` names the document. Without it, or when the corpus dropped that document as a
    duplicate, ``title`` does. The triple is placed in the chunk that holds its sentence, or most of
    its words. A triple of a document that is not in the corpus is yielded with a fault.

    Raises InputError with file and line for a malformed record, because annotations are the user's
    own data, and when no document of the file is in the corpus.
    """
    return _placed(
        path,
        chunks,
        lambda row: ([row.text(part) for part in PARTS], row.text("sentence")),
    )


def read_annotated_facts(path: Path, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """N-ary facts of a JSONL file of ``{"text", "entities", "doc_id"}``; ``text`` is the sentence.

    Facts are placed in chunks, and errors are raised, as in `read_annotated`.
    """

    def fact(row: RawRecord) -> tuple[list[Any], str]:
        names = [
            row.checked_text(name, f"entities.{number}")
            for number, name in enumerate(row.items("entities"))
        ]
        return [row.text("text"), names], row.text("text")

    return _placed(path, chunks, fact)


def _placed(
    path: Path, chunks: Sequence[Chunk], read: Callable[[RawRecord], tuple[list[Any], str]]
) -> Iterator[Extracted]:
    """Items placed in chunks; ``read`` gives the value and the sentence of a row."""
    locator = Locator(chunks)
    placed = False
    for row in read_rows(path):
        with Place(path, row.place):
            value, sentence = read(row)
            doc_id, title = row.identifier("doc_id"), row.optional_text("title") or ""
            if doc_id is None and not title:
                raise InputError(f"doc_id or title: missing; the record has {row.fields()}")
        candidates = locator.of_document(doc_id) if doc_id is not None else []
        if not candidates and title:
            candidates = locator.by_title(title)
        if not candidates:
            yield Extracted(None, title, value, "document not in the corpus")
            continue
        placed = True
        yield Extracted(best_chunk(candidates, sentence).id, title, value)
    if not placed:
        problem = (
            "no document of this file (doc_id, title) is in the corpus; "
            "use the annotations that belong to this corpus"
        )
        raise InputError.at(path, problem)


def read_openie(path: Path, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """Triples of an OpenIE file: ``{"docs": [{"title", "text", "extracted_triples": [...]}]}``.

    A document may have ``passage`` ("title, newline, text") instead of ``title`` and ``text``.
    Documents are matched to chunks by title and text. A document that was cut into several chunks
    gives each triple to the chunk with most of its words. Malformed triples are model output: they
    are yielded as they are, and `graph.build` rejects and counts them.

    One document is in memory at a time. Raises InputError when the file has another shape, or none
    of its documents is in the corpus.
    """
    locator = Locator(chunks)
    placed = False
    for row in read_rows(path, rows=member_rows(path, "docs")):
        with Place(path, row.place):
            document = _openie_document(row)
        triples = row.find("extracted_triples")
        candidates = locator.of_text(document.title, document.text)
        placed = placed or bool(candidates)
        if not candidates:
            yield Extracted(None, document.title, triples, "document not in the corpus")
        elif not isinstance(triples, list):
            yield Extracted(candidates[0].id, document.title, triples, "no list of triples")
        else:
            for triple in triples:
                yield Extracted(_triple_chunk(candidates, triple).id, document.title, triple)
    if not placed:
        raise InputError.at(
            path,
            "no document of this file (title, text) is in the corpus; "
            "name the corpus that the triples were extracted from",
        )


def _openie_document(row: RawRecord) -> Document:
    if "text" in row.value:
        return Document(row.text("title"), row.text("text"))
    return titled(row, row.text("passage"), "passage")


def _triple_chunk(chunks: Sequence[Chunk], triple: object) -> Chunk:
    if len(chunks) == 1 or not isinstance(triple, list):
        return chunks[0]
    # All parts count: the head is usually the document's title, which every chunk shares.
    return best_chunk(chunks, " ".join(part for part in triple if isinstance(part, str)))


def link_titles(chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """Triples (passage title, words before the mention, mentioned title), in chunk order.

    Example: (Malibu Express, "directed, written, and produced by", Andy Sidaris). The relation
    holds at most `RELATION_WORDS` words of the sentence before the mention. Mentions of a passage's
    own title are skipped. This replaces the language model of TeaRAG 4.1 for corpora without
    extracted triples. It departs from the paper: entities are titles only, and a relation is a
    piece of a sentence.
    """
    names = NameIndex(chunk.title for chunk in chunks if chunk.title)
    for chunk in chunks:
        if not chunk.title:
            continue
        for sentence in split_sentences(chunk.text):
            relation_start = 0  # the relation begins after a mention of the passage's own title
            for mention in names.find(sentence):
                if chunk.title in mention.names:
                    relation_start = mention.end
                    continue
                before = " ".join(sentence[relation_start : mention.start].split())
                starts = [word.start() for word in PIECE.finditer(before)][-RELATION_WORDS:]
                relation = before[starts[0] if starts else 0 :].strip(_EDGE) or PLAIN_RELATION
                for name in mention.names:
                    yield Extracted(chunk.id, chunk.title, [chunk.title, relation, name])


def group_triplets(triplets: Sequence[Triplet], chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """N-ary facts in the order of chunks and sentences: a sentence and the ends of its triplets.

    This replaces the language model of ProGraph-R1 3.1 where only triplets exist. A triplet belongs
    to the sentence of its chunk with most of its words, the first one of a tie; a triplet that
    shares no word with any sentence becomes a fact by itself. A sentence that does not name its
    passage's title is prefixed with it, because "He died in Rome." cannot be understood alone.
    Memory: the ids of the chunks, and 8 bytes per triplet.
    """
    rows_of_chunk: dict[str, array[int]] = {}
    for row, triplet in enumerate(triplets):
        rows_of_chunk.setdefault(triplet.chunk_id, array("q")).append(row)
    for chunk in chunks:
        of_chunk = [triplets[row] for row in rows_of_chunk.get(chunk.id, ())]
        for text, entities in _sentence_facts(chunk, of_chunk):
            yield Extracted(chunk.id, chunk.title, [text, entities])


def _sentence_facts(chunk: Chunk, triplets: Sequence[Triplet]) -> Iterator[tuple[str, list[str]]]:
    sentences = split_sentences(chunk.text)
    sentence_words = [word_set(sentence) for sentence in sentences]
    groups: dict[int, list[str]] = {}
    unmatched = []
    for triplet in triplets:
        triplet_words = word_set(triplet.text)
        counts = [len(triplet_words & words) for words in sentence_words]
        if max(counts) == 0:
            unmatched.append(triplet)
        else:
            groups.setdefault(counts.index(max(counts)), []).extend((triplet.head, triplet.tail))
    title = entity_key(chunk.title)
    for number, entities in sorted(groups.items()):
        text = sentences[number]
        yield text if title in entity_key(text) else f"{chunk.title}: {text}", entities
    for triplet in unmatched:
        yield triplet.text, [triplet.head, triplet.tail]


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, in order, split by punctuation alone; white space between them is
    dropped.

    Abbreviations before a capital ("U.S. Navy") end a sentence wrongly.
    """
    return _SENTENCE_END.split(text)
