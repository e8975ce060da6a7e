"""The benchmark code itself; no test needs a peer library."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import growth, kag, reward, store, trajectories, vectors
from benchmarks.__main__ import main
from benchmarks.peers import peer
from benchmarks.steps import make_steps, material
from benchmarks.timing import Row, alternate
from pipeline.core.errors import DependencyError, InputError
from pipeline.retrieval.kag import RankedNode, build


def test_contenders_alternate_and_the_warm_up_round_is_not_counted() -> None:
    runs: list[str] = []

    def contender(name: str) -> Callable[[], object]:
        return lambda: runs.append(name)

    seconds = alternate({"a": contender("a"), "b": contender("b")}, 2)
    assert runs == ["a", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]


def test_the_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    row = Row("r", "w", "p", ours=[1.0, 2.0, 10.0], peer=[3.0, 8.0, 20.0], unit="s")
    assert row.ratio == 3.0  # of 3, 4 and 2
    inverted = Row("r", "w", "p", ours=[3.0], peer=[2.0], unit="B", ours_over_peer=True)
    assert inverted.ratio == 1.5


def test_a_missing_peer_names_the_remedy() -> None:
    with pytest.raises(DependencyError, match=r"need no_such_library.*steep\[bench\]"):
        peer("no_such_library")


def test_steps_have_five_chunks_and_ten_triplets_and_are_reproducible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STEEP_DATA", raising=False)
    steps = make_steps(material(), 20)
    assert {(len(step.chunks), len(step.triplets)) for step in steps} == {(5, 10)}
    assert steps == make_steps(material(), 20)


def test_peers_get_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEEP_DATA", raising=False)
    for step in make_steps(material(), 20):
        graph = kag.graph_of(step)
        dense = build([step], kag.TAU).adjacency_BNN[0]
        weights = sorted(np.triu(dense)[np.triu(dense) > 0].round(12).tolist())
        assert sorted(round(weight, 12) for weight in graph.edges.values()) == weights


def test_a_different_ranking_fails_and_a_tie_passes() -> None:
    ours = [
        RankedNode("chunk", "a", 0.5),
        RankedNode("chunk", "b", 0.5),
        RankedNode("triplet", "t", 0.2),
    ]
    a, b, t = [(("chunk", "a"), 0.5), (("chunk", "b"), 0.5 + 1e-12), (("triplet", "t"), 0.2)]
    kag.check("peer", 0, ours, [b, a, t])
    with pytest.raises(AssertionError, match="ranks differently"):
        kag.check("peer", 0, ours, [b, t, a])
    with pytest.raises(AssertionError, match="in mass"):
        kag.check("peer", 0, ours, [a, b, (("triplet", "t"), 0.3)])
    with pytest.raises(AssertionError, match="other nodes"):
        kag.check("peer", 0, ours, [a, b])


def test_generated_graphs_have_the_papers_mean_degree_and_hubs() -> None:
    blocks = np.concatenate(list(store.ends(20_000)))
    assert blocks.shape == (20_000, 2)
    entities = store.entity_count(20_000)
    assert 2 * 20_000 / entities == pytest.approx(5.13, abs=0.01)
    degrees = np.bincount(blocks.ravel(), minlength=entities)
    assert len(degrees) == entities
    assert degrees.max() > 50 * degrees.mean()
    numbered = [(edge.head, edge.tail) for edge in itertools.islice(store.edges(20_000), 100)]
    assert numbered == [tuple(ends) for ends in blocks[:100].tolist()]


def test_generated_vectors_have_neighbours_and_queries_are_new_vectors() -> None:
    stored = np.concatenate(list(vectors.blocks(1000)))
    np.testing.assert_array_equal(stored, np.concatenate(list(vectors.blocks(1000))))
    np.testing.assert_allclose(np.linalg.norm(stored, axis=1), 1, atol=1e-5)
    cosines = np.sort(vectors.queries(1000, 100) @ stored.T, axis=1)
    assert 0.5 < cosines[:, -1].mean() < 0.95
    assert abs(np.median(cosines)) < 0.1


def test_growth_builds_each_size_once_and_draws_the_picture(tmp_path: Path) -> None:
    def measured() -> list[str]:
        picture = tmp_path / "growth.svg"
        return [row.work for row in growth.rows([40, 80], 5, tmp_path / "built", picture)]

    works = measured()
    assert [work.split(",")[0] for work in works] == [
        "one hop",
        "corpus",
        "graph stage",
        "graph stage's own memory",
        "columns and neighbours",
    ]
    assert "<svg" in (tmp_path / "growth.svg").read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "built").rglob("*.arrow")}
    assert len(before) == 6
    assert measured() == works
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_batched_scoring_needs_fewer_pairs_for_equal_rewards() -> None:
    calls, pairs = reward.rows(None)  # asserts the rewards
    assert calls.ratio > pairs.ratio > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "kag,nothing"], "no row 'nothing'; rows: kag, store, reward, index, growth"),
        (["--rows", "store", "--sizes", "many"], "--sizes: expected whole numbers"),
        (["--repeats", "4"], "--repeats is 4; expected at least 5"),
        (["--chunks", "1000,1000"], "the number of sizes is 1; expected at least 2"),
        (["--steps", "0"], "--steps is 0; expected at least 1"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    options: list[str], message: str
) -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, options)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_memory_of_stages_is_measured_over_generated_trajectories(tmp_path: Path) -> None:
    trajectories.generate(64, tmp_path)
    for stage in trajectories.STAGES.values():
        stage(tmp_path)
    assert (tmp_path / "outputs" / "pair" / "pairs.parquet").exists()
