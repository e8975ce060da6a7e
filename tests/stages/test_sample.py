"""The stage ``sample``: shards, checkpoints and policies, with a tiny random model as engine.

The retrieval variant is ``none``, so no index is needed; tests of the sampler cover retrieval.
"""

import json
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from pipeline import config
from pipeline.core.errors import EngineError, InputError, RetrievalError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ContextItem, Question, Step, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.files.rollout_checkpoints import RolloutCheckpoints, RolloutTimer
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.tables import write_triplets
from pipeline.rollout.policy import read_policy
from tasks.sample import roll_out_policy, run
from tests.recorded_progress import RecordedProgress
from tests.smallest import small_config, small_trajectory
from tests.stages.question_stages import sampling_inputs, stage_context

QUESTIONS = [Question(f"q{n}", "toy", f"Q{n}?", ["Rome"], "single") for n in range(7)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sampling_inputs(tmp_path_factory.mktemp("inputs"), QUESTIONS)


@pytest.fixture
def context(inputs: dict[str, Path], tmp_path: Path) -> StageContext:
    settings = small_config(
        rounds=1,
        retrieval={"variant": "none"},
        model={"base": str(inputs["model"])},
        engine={"kind": "transformers", "dtype": "float32", "max_model_len": 64},
        sampling={"samples": 2, "max_segment_tokens": 6, "batch": 2, "in_flight": 4},
    )
    return stage_context(tmp_path, "sample", settings, inputs, round=1, seed=3)


def trajectories(context: StageContext) -> list[Trajectory]:
    return read_records(context.output / "trajectories.parquet", Trajectory)


def test_every_question_of_a_shard_gets_its_samples_in_order(context: StageContext):
    counts = run(context)
    assert counts == {"questions": 7, "trajectories": 14}
    written = trajectories(context)
    expected = [(f"q{n}", sample) for n in range(7) for sample in range(2)]
    assert [(trajectory.question_id, trajectory.sample) for trajectory in written] == expected
    assert {trajectory.policy for trajectory in written} == {"fingerprint"}
    timing = json.loads((context.output / "timing.json").read_text())
    assert timing["generated_tokens"] == sum(len(trajectory.token_ids) for trajectory in written)
    assert sum(json.loads((context.output / "stops.json").read_text()).values()) == 14


def with_sampling(context: StageContext, **settings: object) -> StageContext:
    values = context.config.model_dump()
    values["sampling"] |= settings
    return replace(context, config=config.Config.model_validate(values))


SAMPLED = small_trajectory(policy="fingerprint", prompt_ids=[1], token_ids=[2])


def recorded(context: StageContext, rows: Iterable[Trajectory]) -> StageContext:
    """The stage that takes these trajectories in place of sampling."""
    path = context.output.parent / "recorded.parquet"
    write_parquet(path, rows, Trajectory)
    return with_sampling(context, recorded=str(path))


@pytest.mark.parametrize(
    ("malformed", "told"),
    [
        (8, None),
        (9, "10 trajectories, 9 malformed (90 %): no tag 6, too long 2, stopped by max_steps 1"),
    ],
)
def test_nine_of_ten_malformed_trajectories_are_told_in_the_stages_line(
    malformed: int, told: str | None, context: StageContext
) -> None:
    """Offsets are left out of the reasons, and trajectories that retrieval ended are not counted."""
    errors = [*(f"no tag at offset {n}" for n in range(6)), "too long", "too long", None]
    rows = [replace(SAMPLED, stop="max_steps", format_error=one) for one in errors[-malformed:]]
    rows += [replace(SAMPLED, format_ok=True)] * (10 - malformed)
    rows.append(replace(SAMPLED, stop="retrieval_error"))
    named = (replace(row, trajectory_id=f"{n}") for n, row in enumerate(rows))
    run(recorded(context, named))
    assert context.notes.get("warnings") == (told and [told])


def test_a_policy_that_was_trained_to_write_something_else_is_not_sampled(
    context: StageContext, tmp_path: Path
) -> None:
    policy = shutil.copytree(context.inputs["policy"], tmp_path / "policy")
    fields = json.loads((policy / "lineage.json").read_text()) | {"grammar": "hiprag"}
    (policy / "lineage.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="malformed; set grammar: hiprag and format: tags"):
        run(replace(context, inputs={**context.inputs, "policy": policy}))


def checkpoints(context: StageContext) -> list[Path]:
    """The checkpoint files, in the order of the questions that they hold."""
    files = context.checkpoint_dir.glob("paths/*/paths-*.parquet")
    return sorted(files, key=lambda file: pq.read_table(file)["question_id"][0].as_py())


def output_bytes(context: StageContext) -> bytes:
    return (context.output / "trajectories.parquet").read_bytes()


def test_a_killed_run_rolls_out_only_what_no_checkpoint_holds(context: StageContext):
    """It reports the trajectories that are done, and ends with the same bytes."""
    progress = RecordedProgress()
    run(replace(context, progress=progress))
    assert (progress.starts, progress.done) == ([(14, "trajectories", 0)], 14)
    assert progress.values["tokens_per_second"] > 0
    expected = output_bytes(context)
    first, second, *others = checkpoints(context)
    assert len(others) == 2  # 7 questions, 2 per batch
    made = second.stat().st_mtime_ns
    for file in (first, *others):
        file.unlink()
    again = RecordedProgress()
    run(replace(context, progress=again))
    assert (again.starts, again.done) == ([(14, "trajectories", 4)], 14)
    assert output_bytes(context) == expected
    assert second.stat().st_mtime_ns == made


def test_with_candidates_the_shown_passages_without_triplets_are_counted(
    context: StageContext, tmp_path: Path
) -> None:
    graph = Graph()
    (tmp_path / "graph").mkdir()
    edges = graph.edges([Extracted("c1", "T", ["Ann", "born in", "Rome"])])
    write_triplets(tmp_path / "graph", edges, graph.entities)
    shown = [ContextItem("chunk", chunk, "T", "text", 0.5) for chunk in ("c1", "c2", "c3")]
    step = Step(subquery="?", context=[*shown, ContextItem("triplet", "c1:0", "", "a b c", 0.5)])
    of_run = recorded(context, [replace(SAMPLED, steps=[step])])
    few = of_run.config.graph.model_copy(update={"scope": "candidates"})
    settings = of_run.config.model_copy(update={"graph": few})
    assert run(replace(of_run, config=settings)) == {"questions": 1, "trajectories": 1}
    inputs = {**context.inputs, "graph": tmp_path / "graph"}
    assert run(replace(of_run, config=settings, inputs=inputs)) == {
        "questions": 1, "trajectories": 1, "shown_passages": 3, "shown_without_triplets": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("failing", "ends"), [("e", False), ("ae", False), ("ab", True), ("cd", True)]
)
def test_a_whole_batch_whose_retrieval_fails_ends_the_stage_but_not_a_last_question(
    failing: str, ends: bool, tmp_path: Path
) -> None:
    files = RolloutCheckpoints(tmp_path, "abcde", samples=1, batch=2)
    timer = RolloutTimer(0.0, SimpleNamespace(seconds=1.0), None, {})
    with pytest.raises(RetrievalError, match="all 2 traj") if ends else nullcontext():
        for name in "abcde":
            stop = "retrieval_error" if name in failing else "answer"
            files.add(replace(SAMPLED, question_id=name, stop=stop), timer)
        files.flush(timer)
        assert not files.remaining()


def damaged(content: bytes) -> list[bytes]:
    """Cut off, empty, and with one flipped bit in the middle of the data."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return [content[:middle], b"", flipped]


def test_damaged_checkpoints_are_rolled_out_again(
    context: StageContext, caplog: pytest.LogCaptureFixture
):
    run(context)
    expected = output_bytes(context)
    for number in range(3):
        first, *_ = checkpoints(context)
        first.write_bytes(damaged(first.read_bytes())[number])
        (context.output / "trajectories.parquet").unlink()
        (first.parent / "seconds.json").write_text(["", "[]", '{"total": null}'][number])
        run(context)
        assert output_bytes(context) == expected
        assert f"{first} is damaged" in caplog.text
        assert "not the seconds of earlier attempts" in caplog.text


def test_checkpoints_with_another_number_of_samples_are_not_used(
    context: StageContext, caplog: pytest.LogCaptureFixture
):
    fewer = with_sampling(context, samples=3)
    roll_out_policy(
        fewer, QUESTIONS, read_policy(context.inputs["policy"]), temperature=1.0, samples=3
    )
    assert run(context) == {"questions": 7, "trajectories": 14}
    assert "6 of its 6 trajectories are not used" in caplog.text


def test_checkpoints_of_another_temperature_are_not_used(context: StageContext):
    """The Python interface lets callers use one directory for several roll-outs."""
    policy = read_policy(context.inputs["policy"])
    sampled = [
        list(roll_out_policy(context, QUESTIONS, policy, temperature=temperature, samples=1)[0])
        for temperature in (0.0, 5.0)
    ]
    assert [t.token_ids for t in sampled[0]] != [t.token_ids for t in sampled[1]]


def test_a_checkpoint_holds_finite_log_probabilities(tmp_path: Path):
    """A record that cannot be read back would end every rerun."""
    written = RolloutCheckpoints(tmp_path, ["q"], samples=1, batch=1)
    broken = small_trajectory(trajectory_id="q/0", logprobs=[None, float("nan")])
    with pytest.raises(EngineError, match="token 1 of q/0 has log-probability nan"):
        written.add(broken, RolloutTimer(0.0, None, None, {}))
