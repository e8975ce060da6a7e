"""The benchmark code itself, and that both sides of a row give the same; no test asserts a time."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import browse, dpo, kag, reward, sampling, serving, store
from benchmarks.__main__ import _markdown
from benchmarks.peers import Missing
from benchmarks.timing import Row, alternate
from pipeline.config import Dpo, Lora
from pipeline.config.policy import Prompt
from pipeline.knowledge.retrieval.kag import RankedNode
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.rollout.policy import RolloutSettings
from pipeline.training.encode import encode_pairs
from pipeline.training.lora import load_base, new_adapter, save_adapter
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.rolled_out import rolled_out
from tests.rollout.test_sampler import (
    ANSWER,
    STEP_2,
    TEARAG,
    TOKENIZER,
    Documents,
    question,
    two_steps,
)
from tests.training.tiny_policy import byte_tokenizer, pair, write_base


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_missing_peer_leaves_out_its_row_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rankings are compared where the peer is installed; None in sys.modules makes an import fail."""
    monkeypatch.delenv("STEEP_DATA", raising=False)
    for name in ("igraph", "sknetwork"):
        monkeypatch.setitem(sys.modules, name, None)
    missing = Missing()
    (row,) = kag.rows(5, 1, missing)  # asserts the rankings
    assert row.peer_name.startswith("networkx")
    assert [reason.split()[0] for reason in missing.reasons] == ["igraph", "sknetwork"]
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert kag.rows(5, 1, Missing()) == []


@pytest.mark.slow
def test_the_databases_find_the_triplets_of_the_graph_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`store.rows` asserts equal answers; without DuckDB the rows of SQLite are left."""
    pytest.importorskip("duckdb")
    works = [row.peer_name.split()[0] for row in store.rows([2_000], 1, Missing())]
    assert works == ["SQLite", "DuckDB", "SQLite", "DuckDB", "raw"]
    monkeypatch.setitem(sys.modules, "duckdb", None)
    left = [row.peer_name.split()[0] for row in store.rows([2_000], 1, Missing())]
    assert left == ["SQLite", "SQLite", "raw"]


@pytest.mark.slow
def test_the_lockstep_loop_and_the_engine_alone_give_the_tokens_of_the_sampler() -> None:
    """Scripted trajectories of one and two steps, replayed; the row asserts the tokens."""
    recorded = recorded_trajectories()
    engine = sampling.SimulatedEngine(
        recorded.tokenizer, recorded.segments(), lambda batch: 0.0, max_num_seqs=3
    )
    retriever = sampling.SimulatedRetriever(recorded.trajectories, 0.0)
    again = sampling._rolled_out(recorded, engine, retriever)
    assert {item.trajectory_id: item for item in again} == {
        item.trajectory_id: item for item in recorded.trajectories
    }
    lockstep, alone, slower = sampling.simulated(recorded, 0.5, 1, at_once=3)
    assert (lockstep.peer_name, alone.peer_name) == ("lockstep loop", "the engine alone")
    queries = sum(len(item.steps) for item in recorded.trajectories)
    assert alone.peer is not None
    # On a busy machine the sleeps of the engine last longer than all queries.
    assert slower.peer == [max(0.5 * queries, seconds) for seconds in alone.peer]


def recorded_trajectories() -> sampling.Recorded:
    questions = [question(number) for number in range(4)]
    trajectories = rolled_out(
        questions,
        engine=ScriptedEngine(one_or_two_steps, TOKENIZER),
        grammar=TEARAG,
        retriever=Documents(),
        samples=2,
    )
    return sampling.Recorded(
        trajectories,
        questions,
        2,
        0,
        0,
        RolloutSettings(prompt=Prompt(system="S")),
        TOKENIZER,
        TEARAG,
    )


def one_or_two_steps(prompt: str, request: GenerationRequest) -> str:
    written = two_steps(prompt, request)
    return ANSWER if "Q1?" in prompt and written == STEP_2 else written


@pytest.mark.slow
def test_plain_trl_has_the_losses_of_our_trainer_where_a_step_is_one_micro_batch(
    tmp_path: Path,
) -> None:
    """With several micro-batches TRL's SFT term is another mean, and the losses differ."""
    base, tokenizer = write_base(tmp_path / "base"), byte_tokenizer()
    settings = Dpo(
        dtype="float32", learning_rate=1e-2, batch_size=4, per_device_batch_size=2,
        beta=0.5, eta=(130.0,), round_epochs=(1.0,),
    )  # fmt: skip
    lora = Lora(dropout=0.0)
    adapter = tmp_path / "adapter"
    save_adapter(new_adapter(load_base(base, settings, "dpo"), lora, 0), adapter)
    pairs = encode_pairs(
        tokenizer, [pair(tokenizer, n, " e" * (4 * n) + "\n") for n in range(1, 9)]
    )
    work = dpo.Work(base, adapter, tokenizer, pairs, settings, lora)
    (row,) = dpo.compared(work, 1)  # asserts the losses
    assert len(row.details["losses"]["ours"]) == 2
    divided = row.details["losses_in_micro_batches_of_2"]
    assert dpo.relative_difference(divided["ours"], row.details["losses"]["ours"]) < dpo.CLOSE
    assert dpo.relative_difference(divided["ours"], divided["plain"]) > dpo.CLOSE


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


def test_batched_scoring_needs_fewer_pairs_for_equal_rewards() -> None:
    calls, pairs = reward.rows(None)  # asserts the rewards
    assert calls.ratio
    assert pairs.ratio
    assert calls.ratio > pairs.ratio > 1


@pytest.mark.slow
def test_gpus_wait_less_without_padding_and_with_equal_tokens() -> None:
    sides = [(100 * (number % 7 + 1), 130 * (number % 5 + 1)) for number in range(64)]
    row = dpo.ranks(sides, 3)
    assert row.ratio is not None
    assert row.ratio > 1.3
    assert all(0.85 < share < 1 for share in row.ours)


def test_every_measured_page_of_the_browser_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "REPEATS", 1)
    pages = {line["page"] for line in browse.measure(64, tmp_path)}
    assert {"trajectories: the last page", "pairs: a rare word", "compare"} < pages


def test_the_table_of_the_page_has_the_figures_of_both_sides() -> None:
    row = Row("kag", "3 steps | real", "networkx", [2.0], [8.0], "µs per step", "> 1")
    alone = Row("no-op", "a finished run", "–", [0.5], None, "wall s")
    _, _, first, second = _markdown([row, alone]).splitlines()
    assert first == (
        "| `kag`: 3 steps \\| real | networkx | 2 and 8 µs per step | 4.00 [4.00, 4.00] | > 1 |"
    )
    assert second == "| `no-op`: a finished run | – | 0.5 wall s | – |  |"


def test_the_engine_alone_has_as_many_requests_in_flight_as_there_are_clients() -> None:
    seen: list[int] = []

    class Watched(ScriptedEngine):
        def step(self) -> list[GenerationResult]:
            seen.append(self.unfinished())
            return super().step()

    engine = Watched(lambda _, request: "a" * (1 + request.seed % 3), TOKENIZER)
    requests = [GenerationRequest(f"r{n}", [1], 8, (), 1.0, 1.0, n) for n in range(5)]
    results = serving.in_flight(engine, requests, 2)
    assert [result.id for result in results] == ["r0", "r1", "r2", "r3", "r4"]
    assert max(seen) == 2
