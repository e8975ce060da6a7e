"""``steep recall`` on a small corpus with a random embedder."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.look.recall.run import InputFiles, run_recall, table
from tests.corpus.test_gold_passages import MUSIQUE

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
REAL = CONFIGS / "real-passages.yaml"
CORPUS = {"Film": ["Made by Ann."], "Ann": ["Born in Rome."], "Bo": ["Of Oslo.", "Bo met Ann."]}
HYPER = ["hyperedges", "graph-r1", "prograph"]
VARIANTS = ["bm25", "fused", "linked", "semantic", "graph", "concat", "ppr", *HYPER]


@pytest.fixture
def files(tmp_path):
    corpus, questions = tmp_path / "corpus.json", tmp_path / "questions.json"
    corpus.write_text(json.dumps(CORPUS))
    questions.write_text(json.dumps([MUSIQUE]))
    return InputFiles((corpus,), questions)


def settings(tmp_path, encoder):
    return (
        f"index.embedder.model={encoder}",
        "index.embedder.max_length=64",
        "index.embedder.dtype=float32",
        f"cache_dir={tmp_path}/cache",
    )


def test_every_retriever_is_measured_on_questions_and_sub_questions(
    tmp_path, files, encoder, capsys
):
    pytest.importorskip("bm25s")
    result = run_recall(REAL, files, overrides=settings(tmp_path, encoder))
    measured = [(row.query, row.retriever, row.n) for row in result.rows]
    assert measured == [("question", name, 1) for name in VARIANTS] + [
        ("sub-question", name, 2) for name in VARIANTS
    ]
    rows = {(row.query, row.retriever): row for row in result.rows}
    # The corpus has three documents, so the first five include every gold passage.
    semantic = rows["question", "semantic"]
    assert semantic.recall["recall@5"] == semantic.strict["recall@5"] == 1
    graph = rows["question", "graph"]
    assert graph.strict["recall@5"] == 0 < graph.recall["recall@5"]
    assert graph.items == graph.triplets > 0
    assert rows["question", "concat"].tokens_per_retrieval > semantic.tokens_per_retrieval
    assert result.sizes["triplets"] == 2  # by Ann, and met Ann
    assert result.sizes["hyperedges"] == 2
    hyper = rows["question", "prograph"]
    assert hyper.strict["recall@5"] == 0 < hyper.recall["recall@5"]  # counted by provenance only
    assert not capsys.readouterr().out  # standard output is for the table or the JSON
    assert "2 triplets, 2 hyperedges" in table(result).note
    line = json.loads(json.dumps(result.as_json()))["rows"][3]
    assert {"dataset": "musique", "retriever": "semantic", "recall@5": 1.0}.items() <= line.items()


def test_graph_retrievers_are_left_out_with_a_note_if_there_are_no_triplets(
    tmp_path, files, encoder
):
    overrides = (*settings(tmp_path, encoder), "graph.source=annotated", "graph.path=other.jsonl")
    result = run_recall(REAL, files, overrides=overrides)
    assert "ppr" not in {row.retriever for row in result.rows}
    assert any(
        "graph, concat, ppr and the hypergraph are left out" in note for note in result.notes
    )


def test_questions_are_checked_before_anything_is_embedded(tmp_path, files):
    """A wrong file is refused at once, not after an hour of embedding."""
    files.questions.write_text(json.dumps([{"asked": "Who?", "answer": "Ann"}]))
    with pytest.raises(
        InputError, match=r"no row has a question and an answer; .* the rows have asked, answer"
    ):
        run_recall(REAL, files, overrides=("index.embedder.model=absent",))


def test_missing_inputs_are_named_in_the_error(tmp_path, files):
    with pytest.raises(InputError, match="--corpus and --questions must be given together"):
        run_recall(REAL, InputFiles(files.corpus))
    with pytest.raises(ConfigError, match="recall needs a question file under data"):
        run_recall(REAL, InputFiles())
    with pytest.raises(InputError, match=r"musique_train100\.json: no such file; pass --data DIR"):
        run_recall(CONFIGS / "recall" / "musique.yaml", InputFiles())
    with pytest.raises(InputError, match="--dataset squad: expected one of musique, "):
        run_recall(REAL, InputFiles(files.corpus, files.questions, dataset="squad"))
