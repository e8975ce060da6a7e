"""Reasoning steps as retrieval passes them to the graph: 5 chunks, 10 triplets, key entities.

Input: MuSiQue passages and the OpenIE triples extracted from them, below the directory STEEP_DATA;
without it a generated corpus of the same shape. Output: `Candidates`. A step starts from one
triplet: its ends are the key entities and its text is the subquery. The triplets are one hop from
the key entities, then one hop further. The chunks are the sources of the triplets, filled up at
random. Scores are lexical similarities on the scale of the embedded configuration, so real ties
occur.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.records import Chunk, Triplet
from pipeline.core.text import tokenize
from pipeline.knowledge.corpus.chunk import chunk_documents
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.graph.build import Extracted, build_graph
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.graph.sources import read_openie
from pipeline.knowledge.retrieval.base import ScoredChunk, ScoredTriplet
from pipeline.knowledge.retrieval.kag import Candidates

CHUNKS, TRIPLETS = 5, 10
SCALE, OFFSET = 16.8, -7.75  # configs/embedded.yaml, retrieval.reranker
CORPUS = "musique/musique_train100_corpus1890.json"
OPENIE = "musique/musique_train100_openie_gpt35_1890.json"


@dataclass(frozen=True)
class Material:
    """A corpus and its graph; ``source`` describes the origin."""

    source: str
    chunks: list[Chunk]
    triplets: list[Triplet]


def material() -> Material:
    """The MuSiQue sample if STEEP_DATA is set, else a generated corpus.

    Raises InputError when STEEP_DATA is set and the files are missing.
    """
    directory = os.environ.get("STEEP_DATA")
    if not directory:
        return _generated(random.Random(0))
    root = Path(directory)
    chunks = list(chunk_documents(read_documents(root / CORPUS), 100))
    _, triplets = build_graph(read_openie(root / OPENIE, chunks))
    return Material("MuSiQue passages and OpenIE triples", chunks, triplets)


def make_steps(source: Material, count: int, seed: int = 0) -> list[Candidates]:
    """``count`` steps; equal arguments give equal steps."""
    rng = random.Random(seed)
    incident: dict[str, list[int]] = {}
    for row, triplet in enumerate(source.triplets):
        for key in {entity_key(triplet.head), entity_key(triplet.tail)}:
            incident.setdefault(key, []).append(row)
    by_id = {chunk.id: chunk for chunk in source.chunks}
    words_C = {
        chunk.id: frozenset(tokenize(f"{chunk.title} {chunk.text}")) for chunk in source.chunks
    }
    words_T = [frozenset(tokenize(triplet.text)) for triplet in source.triplets]

    def score(query: frozenset[str], text: frozenset[str]) -> float:
        return SCALE * len(query & text) / len(query) + OFFSET

    steps = []
    for _ in range(count):
        first = rng.randrange(len(source.triplets))
        seed_triplet = source.triplets[first]
        entities = [seed_triplet.head, seed_triplet.tail][: rng.choice((1, 2))]
        rows = _walk(entities, source.triplets, incident, rng)
        ids = list(dict.fromkeys(source.triplets[row].chunk_id for row in rows))[: CHUNKS - 1]
        while len(ids) < CHUNKS:
            other = rng.choice(source.chunks).id
            if other not in ids:
                ids.append(other)
        query = words_T[first] or frozenset({""})
        chunks = [
            ScoredChunk(name, by_id[name].title, "", score(query, words_C[name])) for name in ids
        ]
        near = [(source.triplets[row], score(query, words_T[row])) for row in rows]
        triplets = [
            ScoredTriplet(one.id, one.head, one.relation, one.tail, one.chunk_id, similarity)
            for one, similarity in near
        ]
        steps.append(Candidates(entities, chunks, triplets))
    return steps


def _walk(
    entities: list[str],
    triplets: list[Triplet],
    incident: dict[str, list[int]],
    rng: random.Random,
) -> list[int]:
    """Ten triplets near the entities: one hop away, then from the next hops or at random."""
    near = dict.fromkeys(row for name in entities for row in incident[entity_key(name)])
    rows = rng.sample(list(near), min(len(near), TRIPLETS))
    while len(rows) < TRIPLETS:
        triplet = triplets[rng.choice(rows)]
        end = entity_key(rng.choice((triplet.head, triplet.tail)))
        row = rng.choice([*incident[end], rng.randrange(len(triplets))])
        if row not in rows:
            rows.append(row)
    return rows


def _generated(rng: random.Random) -> Material:
    """As many passages as the sample, with nine triples each, most of them about the title."""
    names = [f"Person{n} of Town{n % 97}" for n in range(14_000)]
    chunks = []
    extracted = []
    for number in range(1_890):
        title = names[number]
        parts = []
        for _ in range(9):
            head = title if rng.random() < 0.6 else rng.choice(names)
            # A few names are frequent: the square of a uniform number is concentrated near 0.
            tail = names[int(len(names) * rng.random() ** 2)]
            parts.append([head, f"relation {rng.randrange(500)}", tail])
        text = ". ".join(" ".join(part) for part in parts)
        chunks.append(Chunk(f"c{number}", title, text, f"d{number}"))
        extracted += [Extracted(f"c{number}", title, part) for part in parts]
    _, triplets = build_graph(extracted)
    return Material("generated (STEEP_DATA is not set)", chunks, triplets)
