"""A graph of links between passages that mention each other's titles."""

import json
from pathlib import Path

import pytest

from pipeline.config import Corpus, CorpusFile, Data, Graph, load
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Triplet
from pipeline.engine.context import StageContext
from pipeline.knowledge.corpus.chunk import chunk_documents, write_chunks
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.knowledge.graph.sources import link_titles
from tasks import graph as stage

EMBEDDED = Path(__file__).resolve().parents[2] / "configs" / "embedded.yaml"
DOCUMENTS = [
    Document(
        "Malibu Express",
        "Malibu Express is a 1985 film directed, written and produced by Andy Sidaris. It was "
        "shot in California.",
        "d1",
    ),
    Document("Andy Sidaris", "He made Malibu Express. Andy Sidaris lived in California.", "d2"),
    Document("California", "A state.", "d3"),
    Document("", "Nameless; see California.", "d4"),
]
CHUNKS = list(chunk_documents(DOCUMENTS, 100))


def triples(chunks):
    return [(link.chunk_id, *link.value) for link in link_titles(chunks)]


def test_title_link_is_title_preceding_words_and_mentioned_title():
    assert triples(CHUNKS) == [
        (
            "d1-0",
            "Malibu Express",
            "a 1985 film directed, written and produced by",
            "Andy Sidaris",
        ),
        ("d1-0", "Malibu Express", "It was shot in", "California"),
        ("d2-0", "Andy Sidaris", "He made", "Malibu Express"),
        ("d2-0", "Andy Sidaris", "lived in", "California"),
    ]


def graph_of(tmp_path, graph):
    corpus, output = tmp_path / "corpus", tmp_path / "graph"
    write_chunks(corpus, CHUNKS)
    output.mkdir()
    config = load(EMBEDDED).model_copy(
        update={
            "graph": graph,
            "data": Data(root=str(tmp_path)),
            "corpus": Corpus(files=(CorpusFile(path="unused"),)),
        }
    )
    context = StageContext(config, "graph", output, tmp_path / "partial", {"corpus": corpus})
    stage.run(context)
    return read_records(output / "triplets.parquet", Triplet)


def test_title_links_are_added_to_another_source(tmp_path):
    entry = {
        "title": "California",
        "text": "A state.",
        "extracted_triples": [["California", "is", "state"]],
    }
    (tmp_path / "openie.json").write_text(json.dumps({"docs": [entry]}))
    openie = Graph(source="openie", path="openie.json", titles=True)
    stored = graph_of(tmp_path, openie)
    assert stored[0].relation == "is"
    assert len(stored) == 5


@pytest.mark.parametrize(
    ("title", "text", "other", "relation"),
    [
        ("北京大学", "北京大学位于海淀区。", "海淀区", "位于"),
        ("วัดโพธิ์", "วัดโพธิ์อยู่ในกรุงเทพ", "กรุงเทพ", "อยู่ใน"),
        ("جامعة القاهرة", "جامعة القاهرة تقع في الجيزة.", "الجيزة", "تقع في"),
    ],
)
def test_titles_are_linked_in_scripts_without_spaces_or_capitals(
    title: str, text: str, other: str, relation: str
) -> None:
    chunks = [Chunk("a-0", title, text, "a"), Chunk("b-0", other, ".", "b")]
    assert [found.value for found in link_titles(chunks)] == [[title, relation, other]]
