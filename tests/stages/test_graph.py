"""The graph stage over a real corpus with real OpenIE output."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from pipeline import config
from pipeline.core.input_files import read_jsonl
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Triplet
from pipeline.graph.entities import entity_key
from pipeline.run.context import StageContext
from pipeline.stages import corpus, graph

CONFIGS = Path(__file__).parents[2] / "configs"


def test_every_triplet_has_its_chunk_and_entities(real_data: Path, tmp_path: Path) -> None:
    settings = config.load(CONFIGS / "musique-sample.yaml", data=str(real_data))
    for name in ("corpus", "graph"):
        (tmp_path / name).mkdir()
    corpus.run(StageContext(settings, "corpus", tmp_path / "corpus", tmp_path))
    inputs = {"corpus": tmp_path / "corpus"}
    counts = graph.run(StageContext(settings, "graph", tmp_path / "graph", tmp_path, inputs))
    triplets = read_records(tmp_path / "graph/triplets.parquet", Triplet)
    chunks = {chunk.id for chunk in read_records(tmp_path / "corpus/chunks.parquet", Chunk)}
    entities = pq.read_table(tmp_path / "graph/entities.parquet").to_pylist()
    assert counts == {"triplets": 17_202, "entities": 16_244, "rejects": 185}
    assert len({triplet.id for triplet in triplets}) == len(triplets) == counts["triplets"]
    assert {triplet.chunk_id for triplet in triplets} <= chunks
    assert [entity["id"] for entity in entities] == list(range(len(entities)))
    ends = {entity_key(end) for triplet in triplets for end in (triplet.head, triplet.tail)}
    assert {entity["key"] for entity in entities} == ends
    statistics = json.loads((tmp_path / "graph/statistics.json").read_text())
    degrees = ("degree_mean", "out_degree_mean", "in_degree_mean", "degree_max")
    assert [statistics[name] for name in degrees] == [2.118, 3.2778, 1.2967, 226]
    rejects = [value for _, value in read_jsonl(tmp_path / "graph/rejects.jsonl")]
    assert len(rejects) == 185
    assert rejects[0].keys() == {"chunk_id", "title", "reason", "value"}
