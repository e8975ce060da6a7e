"""Annotated and OpenIE triples are placed in their chunks; malformed model output is counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.records import Chunk
from pipeline.knowledge.corpus.chunk import chunk_documents
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.knowledge.graph.build import build_graph
from pipeline.knowledge.graph.sources import read_annotated, read_openie

TEXT = "Ann was born in Rome . She moved to Oslo in 1900 . There she wrote Emma ."
CHUNKS = list(chunk_documents([Document("Ann", TEXT, "d1"), Document("Bo", "Bo sings .", "d2")], 6))


def annotations(tmp_path: Path, *records: dict[str, Any]) -> Path:
    path = tmp_path / "triplets.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in records), encoding="utf-8")
    return path


def annotation(tail: str, sentence: str, doc_id: str = "d1") -> dict[str, Any]:
    return {
        "head": "Ann",
        "relation": "r",
        "tail": tail,
        "title": "Ann",
        "doc_id": doc_id,
        "sentence": sentence,
    }


def test_annotation_is_placed_in_the_chunk_of_its_sentence(tmp_path: Path) -> None:
    path = annotations(
        tmp_path,
        annotation("Rome", "Ann was born in Rome ."),
        annotation("1900", "She moved to Oslo in 1900 ."),  # most of it is in the second chunk
        annotation("Emma", "There she  wrote Emma ."),
        annotation("Emma", "There she wrote Emma .", doc_id="gone"),  # found by its title
    )
    assert [item.chunk_id for item in read_annotated(path, CHUNKS)] == [
        "d1-0",
        "d1-1",
        "d1-2",
        "d1-2",
    ]


def test_malformed_annotation_raises_input_error_with_its_line(tmp_path: Path) -> None:
    path = annotations(tmp_path, annotation("Rome", "x"), {"head": "Ann", "relation": "r"})
    with pytest.raises(InputError, match=r"triplets\.jsonl:2: tail: missing"):
        list(read_annotated(path, CHUNKS))


def openie(tmp_path: Path, *documents: Any) -> Path:
    path = tmp_path / "openie.json"
    path.write_text(json.dumps({"docs": list(documents)}), encoding="utf-8")
    return path


def test_openie_triple_is_placed_in_the_chunk_with_most_of_its_words(tmp_path: Path) -> None:
    triples = [["Ann", "born in", "Rome"], ["Ann", "moved to", "Oslo"], ["Ann", "wrote", "Emma"]]
    path = openie(tmp_path, {"title": "Ann", "text": TEXT, "extracted_triples": triples})
    assert [item.chunk_id for item in read_openie(path, CHUNKS)] == ["d1-0", "d1-1", "d1-2"]


def test_malformed_openie_triples_are_counted_by_reason(tmp_path: Path) -> None:
    path = openie(
        tmp_path,
        {"title": "Bo", "text": "Bo sings .", "extracted_triples": [["Bo", "sings"], "Bo", []]},
        {"title": "Bo", "text": "Bo sings .", "extracted_triples": None},
        {"title": "Bo", "text": "Bo is elsewhere .", "extracted_triples": [["a", "b", "c"]]},
    )
    reasons = Counter(item.reason for item in build_graph(read_openie(path, CHUNKS))[0].rejects)
    assert reasons == {
        "length 2": 1,
        "not a list": 1,
        "length 0": 1,
        "no list of triples": 1,
        "document not in the corpus": 1,
    }


def test_real_openie_loses_only_malformed_triples(real_data: Path) -> None:
    folder = real_data / "musique"
    chunks: list[Chunk] = list(
        chunk_documents(read_documents(folder / "musique_train100_corpus1890.json"), 100)
    )
    graph, triplets = build_graph(
        read_openie(folder / "musique_train100_openie_gpt35_1890.json", chunks)
    )
    assert len(triplets) + graph.duplicates + len(graph.rejects) == 17_419
    reasons = Counter(item.reason for item in graph.rejects)
    assert reasons == {"length 2": 70, "length 4": 112, "length 5": 2, "length 6": 1}
    home = {chunk.id: chunk.doc_id for chunk in chunks}
    assert len({home[item.chunk_id] for item in triplets}) == 1890 - 2  # which have no triples
