"""The key of stage ``sft-data`` covers whatever extracts from paragraphs outside the corpus."""

from pathlib import Path

import pytest

from tasks.sft_data import SftData

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def key(*overrides: str, name: str = "tearag-llama3-8b") -> dict[str, object]:
    task = SftData(config=str(CONFIGS / f"{name}.yaml"), overrides=(*overrides, "data.root=/data"))
    return {**task.slice(), **task.files()}


@pytest.mark.parametrize(
    "override",
    ["graph.model=other/extractor", "graph.engine.dtype=float32", "corpus.chunk_words=50"],
)
def test_the_graphs_model_and_the_cut_of_the_corpus_are_part_of_the_key(override: str) -> None:
    assert key(override) != key()


def test_a_graph_without_a_model_adds_nothing_to_the_key() -> None:
    assert not [name for name in key(name="embedded") if name.startswith(("graph", "corpus"))]
