"""Evidence paths: the passages that a question is to be answered from.

Input: the passages and triplets of a corpus. Output: single passages, and pairs of passages of two
documents with a bridge, which is an entity that a triplet of the first passage ends in, and that
the second passage is about: its title, or the head of a triplet in it. Without triplets the
titles that passages mention are the bridges (`graph.sources.link_titles`).

No other path has a document of a held-out path. Held-out documents are neighbours, because few
pairs of passages would lie within a random tenth of the documents.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.core.columns import Records
from pipeline.core.records import Chunk, Triplet
from pipeline.knowledge.graph.build import build_graph
from pipeline.knowledge.graph.sources import link_titles

_STARTS = 20  # passages that are looked at for each pair that is wanted
_MOST_SECONDS = 20  # of a bridge; a name of more passages is too common to ask about


@dataclass(frozen=True, slots=True)
class EvidencePath:
    """One passage, or two and the ``bridge`` between them; ``held_out``: of held-out documents."""

    chunks: tuple[Chunk, ...]
    bridge: str = ""
    held_out: bool = False


def evidence_paths(
    chunks: Records[Chunk],
    triplets: Records[Triplet],
    *,
    single: int,
    multi: int,
    held_out: float,
    seed: int,
) -> list[EvidencePath]:
    """At most ``single`` passages and ``multi`` pairs; ``held_out`` is the share of documents.

    A passage is in one single path, and first and second in one pair each, so that the questions
    differ.
    """
    rng = random.Random(f"evidence paths:{seed}")
    wanted = min(len(chunks), max(_STARTS * multi, 2 * single))
    starts = [chunks[row] for row in sorted(rng.sample(range(len(chunks)), wanted))]
    pairs = list(_pairs(starts, chunks, triplets, rng)) if multi else []
    documents = {chunk.doc_id for chunk in starts}
    documents |= {chunk.doc_id for first, second, _ in pairs for chunk in (first, second)}
    kept_back = _neighbours(sorted(documents), pairs, held_out, rng)
    rng.shuffle(pairs)
    rng.shuffle(starts)
    singles = (EvidencePath((chunk,), held_out=chunk.doc_id in kept_back) for chunk in starts)
    doubles = (
        EvidencePath((first, second), bridge, held_out=first.doc_id in kept_back)
        for first, second, bridge in _distinct(pairs)
        if (first.doc_id in kept_back) == (second.doc_id in kept_back)
    )
    return [*_chosen(singles, single, held_out), *_chosen(doubles, multi, held_out)]


Pair = tuple[Chunk, Chunk, str]


def _pairs(
    starts: Sequence[Chunk], chunks: Records[Chunk], triplets: Records[Triplet], rng: random.Random
) -> Iterator[Pair]:
    by_id = {chunk.id: chunk for chunk in starts}
    if len(triplets):
        edges = triplets.where("chunk_id", by_id.keys())
    else:
        edges = build_graph(link_titles(list(chunks)))[1]
    ends = {edge.tail for edge in edges if edge.chunk_id in by_id}
    about: dict[str, dict[str, Chunk]] = {}
    for chunk in chunks.where("title", ends):
        about.setdefault(chunk.title, {})[chunk.id] = chunk
    headed = triplets.where("head", ends) if len(triplets) else []
    others = {chunk.id: chunk for chunk in chunks.where("id", {edge.chunk_id for edge in headed})}
    for edge in headed:
        about.setdefault(edge.head, {})[edge.chunk_id] = others[edge.chunk_id]
    for edge in edges:
        first = by_id.get(edge.chunk_id)
        seconds = [
            chunk
            for chunk in about.get(edge.tail, {}).values()
            if first is not None and chunk.doc_id != first.doc_id and chunk.title != first.title
        ]
        if first is not None and 0 < len(seconds) <= _MOST_SECONDS:
            yield first, rng.choice(seconds), edge.tail


def _neighbours(
    documents: Sequence[str], pairs: Iterable[Pair], share: float, rng: random.Random
) -> set[str]:
    """``share`` of the documents, rounded down, which are linked by pairs as far as possible."""
    linked: dict[str, list[str]] = {}
    for first, second, _ in pairs:
        linked.setdefault(first.doc_id, []).append(second.doc_id)
        linked.setdefault(second.doc_id, []).append(first.doc_id)
    count = int(share * len(documents))
    found: dict[str, None] = {}
    for start in rng.sample(documents, len(documents)):
        queue = deque([start])
        while queue and len(found) < count:
            document = queue.popleft()
            if document not in found:
                found[document] = None
                queue.extend(linked.get(document, ()))
    return set(found)


def _distinct(pairs: Iterable[Pair]) -> Iterator[Pair]:
    firsts: set[str] = set()
    seconds: set[str] = set()
    for first, second, bridge in pairs:
        if first.id not in firsts and second.id not in seconds:
            firsts.add(first.id)
            seconds.add(second.id)
            yield first, second, bridge


def _chosen(paths: Iterable[EvidencePath], count: int, held_out: float) -> Iterator[EvidencePath]:
    """The first ``count`` paths, of which ``held_out`` is the share of held-out ones."""
    left = {True: round(held_out * count), False: count - round(held_out * count)}
    for path in paths:
        if left[path.held_out]:
            left[path.held_out] -= 1
            yield path
