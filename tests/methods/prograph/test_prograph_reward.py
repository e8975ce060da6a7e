"""ProGraph-R1's step rewards: structure, totals, and the stage without sampling, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import config
from pipeline.config.policy import ProGraphReward
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.engine.context import StageContext
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.tables import write_hyperedges
from pipeline.methods.prograph.reward import step_rewards
from pipeline.methods.prograph.structure import Structure, structure
from pipeline.rollout.grammars import grammar
from pipeline.rollout.turns import turns_of
from pipeline.training.lineage import Lineage
from tasks.score import StageInputs, continuation_identity, open_entities, run
from tests.smallest import small_trajectory

CONFIGS = Path(__file__).parents[3] / "configs"
GRAMMAR = grammar("prograph")
FACTS = [
    ["Up is by Ann.", ["Up", "Ann"]],
    ["Ann left Rome for Oslo in 1900.", ["Ann", "Rome", "Oslo", "1900"]],
    ["Bo lives in Paris.", ["Bo", "Paris"]],
]


def item(number: int) -> ContextItem:
    return ContextItem("hyperedge", f"c:f{number}", "", str(FACTS[number][0]), 0.5)


def trajectory(
    *turns: tuple[str, str, list[ContextItem]], think: str = "So.", answer: str = "Oslo"
) -> Trajectory:
    steps = [Step(think=t, query=q, context=items) for t, q, items in turns]
    record = parsed(*GRAMMAR.render([*steps, Step(think=think)], answer))
    for step, (_, _, items) in zip(record.steps, turns, strict=False):
        step.context = items
    return record


def parsed(output: str, spans: list[tuple[int, int, str]]) -> Trajectory:
    """A trajectory with the steps, the answer and the verdict of an output."""
    found = GRAMMAR.parse(output, spans)
    return small_trajectory(
        dataset="musique", question="Where did the maker of Up go?", answers=["Oslo", "oslo city"],
        grammar="prograph", output=output, spans=spans, steps=found.steps, answer=found.answer,
        format_ok=found.format_ok,
    )  # fmt: skip


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    facts = Facts()
    edges = facts.edges([Extracted("c", "T", fact) for fact in FACTS])
    (tmp_path / "graph").mkdir()
    write_hyperedges(tmp_path / "graph", edges, facts.entities)
    return tmp_path / "graph"


def test_structure_counts_entities_of_retrieved_items(graph: Path) -> None:
    """Step 1 retrieves {Up, Ann}, of which Up is in the question. Step 2 retrieves {Ann, Rome, Oslo,
    1900} and {Up, Ann}; Up and Ann occur before it, Rome only in its thought. The last step retrieves
    nothing."""
    record = trajectory(
        ("Who?", "maker of Up", [item(0)]), ("Rome?", "where is Ann", [item(1), item(0)])
    )
    assert structure(record, turns_of(record), open_entities(graph)) == [
        Structure(1 / 2, 0.0),
        Structure(2 / 5, 1 / 5),
        Structure(0.0, 0.0),
    ]


def test_entities_named_in_reasoning_connect_the_next_step(graph: Path) -> None:
    record = trajectory(("It may be Paris.", "maker of Up", []), ("Who?", "Bo", [item(2)]))
    [empty, second, _] = structure(record, turns_of(record), open_entities(graph))
    assert empty == Structure(0.0, 0.0)
    assert second == Structure(1 / 2, 0.0)  # Paris; "Bo" is step 2's own word


def test_items_outside_the_graph_are_matched_as_texts(graph: Path) -> None:
    chunk = ContextItem("chunk", "x", "Ann", "She went to Oslo.", 1.0)
    record = trajectory(("Who?", "maker of Up", [chunk]))
    assert structure(record, turns_of(record), open_entities(graph))[0] == Structure(0.0, 1 / 2)


def test_every_term_of_a_trajectory() -> None:
    """r_outcome = 1 + 1; values .25, .5, .5, 1: progress .25, 0, .5."""
    record = trajectory(("a", "b", []), ("c", "d", []))
    shape = [Structure(0.5, 0.0), Structure(0.4, 0.2), Structure(0.0, 0.0)]
    rewards = step_rewards(
        record, shape, [0.25, 0.5, 0.5, 1.0], ProGraphReward(progress=0.5, structure=0.25)
    )
    assert [step["progress"] for step in rewards["steps"]] == [0.25, 0.0, 0.5]
    totals = [2 + 0.125 + 0.125, 2 + 0.15, 2 + 0.25]
    assert [step["total"] for step in rewards["steps"]] == pytest.approx(totals)
    assert rewards["total"] == pytest.approx(sum(totals) / 3)
    assert (rewards["format"], rewards["answer"]) == (1.0, 1.0)
    assert rewards["connectivity"] == pytest.approx(0.3)


THOUGHT, QUERY, ANSWER = "<think>a</think>\n", "<query>b</query>", "<answer>Oslo</answer>"
ASKED = THOUGHT + QUERY


@pytest.mark.parametrize(
    ("turns", "parts", "total"),
    [
        ([ASKED, THOUGHT + ANSWER], (1.0, 1.0), 1.0),
        ([ASKED, ASKED, THOUGHT + ANSWER], (1.0, 1.0), 1.0),
        ([ASKED, THOUGHT + "<answer>in Oslo</answer>"], (1.0, 2 / 3), 2 / 3),
        ([THOUGHT + ANSWER], (0.5, 0.0), -0.5),  # without a query
        ([ASKED, ANSWER], (0.5, 0.0), -0.5),  # without a thought
        ([ASKED, THOUGHT + ANSWER + " so"], (0.5, 0.0), -0.5),  # text outside the tags
        ([ASKED, THOUGHT + ANSWER + ANSWER], (0.5, 0.0), -0.5),  # a tag twice
        ([QUERY, THOUGHT + ANSWER], (0.5, 0.0), -0.5),
        ([ASKED, ASKED], (0.5, 0.0), -0.5),  # the last turn can only answer
        ([ASKED, ASKED, ANSWER], (1.0, 1.0), 1.0),  # as in the public code
        ([ASKED, ASKED, "stop"], (1.0, 0.0), 0.0),
        (["nothing"], (0.0, 0.0), -1.0),
        ([], (0.0, 0.0), -1.0),
    ],
)
def test_the_gated_reward_of_graph_r1(
    turns: list[str], parts: tuple[float, float], total: float
) -> None:
    """-1 + min(.5 per well-formed turn, 1), and F1 only where the format part is 1."""
    output, spans, knowledge = "", [], "\n<knowledge>\nc\n</knowledge>\n"
    for number, turn in enumerate(turns):
        for text, writer in ((turn, "model"), (knowledge, "observation")):
            if writer == "model" or number + 1 < len(turns):
                spans.append((len(output), len(output) + len(text), writer))
                output += text
    weights = ProGraphReward(progress=0.0, structure=0.0, outcome="gated")
    shape = [Structure(0.5, 0.5)] * len(turns)
    rewards = step_rewards(parsed(output, spans), shape, None, weights)
    assert (rewards["format"], rewards["answer"]) == pytest.approx(parts)
    assert rewards["total"] == pytest.approx(total)
    assert [step["total"] for step in rewards["steps"]] == pytest.approx([total] * len(turns))


def test_unmeasured_progress_is_null_and_adds_nothing() -> None:
    rewards = step_rewards(trajectory(("a", "b", [])), [Structure(0.5, 0.5)] * 2, None)
    assert rewards["progress"] is None
    assert [step["total"] for step in rewards["steps"]] == [2.5, 2.5]
    assert step_rewards(small_trajectory(grammar="prograph"), [], [0.0])["total"] == 0.0


def test_cached_continuations_depend_on_limits_of_observations_and_on_merging(
    tmp_path: Path,
) -> None:
    def identity(*overrides: str) -> str:
        settings = config.load(CONFIGS / "embedded-prograph.yaml", overrides)
        context = StageContext(settings, "score", tmp_path, tmp_path, {}, round=1)
        return continuation_identity(context, "policy")

    limits = [(f"sampling.max_context_tokens={limit}",) for limit in ("null", "300", "400")]
    assert len({identity(*limit) for limit in (*limits, ("engine.adapters=loaded",))}) == 4
    assert identity("engine.adapters=merged") == identity()
    assert identity("engine.max_num_seqs=7", "sampling.in_flight=3") == identity()


def test_a_trajectory_of_another_policy_is_not_continued(tmp_path: Path) -> None:
    """``Run.score`` of policy 1's trajectories is of round 2; by default it is of round 1."""
    Lineage("policy-0", "base", "", None, None, 0, "sft", {}, seed=0, counts={}).write(tmp_path)
    settings = config.load(CONFIGS / "embedded-prograph.yaml")
    context = StageContext(settings, "score", tmp_path, tmp_path, {"policy": tmp_path}, round=1)
    records = [small_trajectory(policy=name, trajectory_id=name) for name in ("policy-0", "other")]
    said = (
        "trajectory other is of policy other, and round 1 continues with policy-0; name the round"
    )
    with pytest.raises(InputError, match=said):
        StageInputs(context).state_values(records, 2)


def test_the_stage_without_progress_samples_nothing(graph: Path, tmp_path: Path) -> None:
    broken = trajectory(("a", "b", []))
    broken.stop, broken.trajectory_id = "retrieval_error", "broken"
    trajectories = [trajectory(("Who?", "maker of Up", [item(0)])), broken]
    for name in ("sample", "output", "partial"):
        (tmp_path / name).mkdir()
    write_parquet(tmp_path / "sample/trajectories.parquet", trajectories, Trajectory)
    settings = config.load(
        CONFIGS / "embedded.yaml",
        ("grammar=prograph", "rewards.prograph.progress=0"),
    )
    inputs = {"sample": tmp_path / "sample", "graph": graph, "policy": tmp_path}
    counts = run(
        StageContext(settings, "score", tmp_path / "output", tmp_path / "partial", inputs, round=1)
    )
    assert counts == {"trajectories": 2, "retrieval_error": 1}
    scored = read_records(tmp_path / "output/trajectories.parquet", Trajectory)
    assert scored[1].rewards is None
    assert scored[0].rewards is not None
    assert [step["connectivity"] for step in scored[0].rewards["steps"]] == [0.5, 0.0]
    sums = json.loads((tmp_path / "output/statistics.json").read_text())["datasets"]["musique"]
    assert sums["connectivity"] == 0.25
    assert not (tmp_path / "output/progress.json").exists()
