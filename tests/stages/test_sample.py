"""The stage ``sample``: shards, checkpoints and policies, with a tiny random model as engine.

The retrieval variant is ``none``, so no index is needed; tests of the sampler cover retrieval.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline import config
from pipeline.core.errors import EngineError, InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ContextItem, Question, Step, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.files.malformed import warn_of_malformed
from pipeline.engine.files.rollout_checkpoints import RolloutCheckpoints, RolloutTimer
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.tables import write_triplets
from pipeline.rollout.policy import Policy, read_policy
from tasks.sample import roll_out_policy, run
from tests.recorded_progress import RecordedProgress
from tests.smallest import small_config, small_trajectory
from tests.stages.question_stages import sampling_inputs

QUESTIONS = [Question(f"q{n}", "toy", f"Q{n}?", ["Rome"], "single") for n in range(7)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sampling_inputs(tmp_path_factory.mktemp("inputs"), QUESTIONS)


@pytest.fixture
def context(inputs: dict[str, Path], tmp_path: Path) -> StageContext:
    settings = small_config(
        retrieval={"variant": "none"},
        model={"base": str(inputs["model"])},
        engine={"kind": "transformers", "dtype": "float32", "max_model_len": 64},
        sampling={"samples": 2, "max_segment_tokens": 6, "batch": 2, "in_flight": 4},
    )
    checkpoint_dir, output = tmp_path / "checkpoints", tmp_path / "output"
    checkpoint_dir.mkdir()
    output.mkdir()
    return StageContext(settings, "sample", output, checkpoint_dir, inputs=inputs, round=1, seed=3)


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


def test_a_policy_without_format_is_told_in_the_stages_line_with_the_main_reason(
    context: StageContext, tmp_path: Path
) -> None:
    row = small_trajectory(policy="fingerprint", prompt_ids=[1], token_ids=[2])
    rows = [
        replace(row, trajectory_id=f"{n}", format_error=f"no tag at offset {n}") for n in range(3)
    ]
    write_parquet(tmp_path / "recorded.parquet", rows, Trajectory)
    recorded = {"recorded": str(tmp_path / "recorded.parquet")}
    settings = small_config(rounds=1, sampling=recorded)
    run(replace(context, config=settings))
    assert context.notes["warnings"] == ["3 trajectories, 3 malformed (100 %): no tag 3"]


@pytest.mark.parametrize(
    ("malformed", "told"),
    [
        (8, None),
        (9, "10 trajectories, 9 malformed (90 %): no tag 6, too long 2, stopped by max_steps 1"),
    ],
)
def test_nine_of_ten_malformed_trajectories_are_told(
    malformed: int, told: str | None, context: StageContext
) -> None:
    """Offsets are left out of the reasons, and trajectories that retrieval ended are not counted."""
    errors = [*(f"no tag at offset {n}" for n in range(6)), "too long", "too long", None]
    rows = [
        small_trajectory(trajectory_id=f"{n}", stop="max_steps", format_error=error)
        for n, error in enumerate(errors[-malformed:])
    ]
    rows += [
        small_trajectory(trajectory_id=f"right {n}", format_ok=True) for n in range(10 - malformed)
    ]
    rows.append(small_trajectory(trajectory_id="broken", stop="retrieval_error"))
    write_parquet(context.output / "trajectories.parquet", rows, Trajectory)
    warn_of_malformed(context, context.output / "trajectories.parquet")
    assert context.notes.get("warnings") == (told and [told])


@pytest.mark.parametrize(
    ("lineage", "settings"),
    [
        (
            {"grammar": "hiprag", "format": "tags"},
            "grammar: hiprag and format: tags",
        ),
        (
            {"grammar": "tearag", "format": "tools"},
            "grammar: tearag and format: tools",
        ),
    ],
)
def test_a_policy_that_was_trained_to_write_something_else_is_not_sampled(
    lineage: dict[str, str], settings: str, context: StageContext, tmp_path: Path
) -> None:
    policy = tmp_path / "policy"
    shutil.copytree(context.inputs["policy"], policy)
    fields = json.loads((policy / "lineage.json").read_text())
    (policy / "lineage.json").write_text(json.dumps(fields | lineage))
    with pytest.raises(InputError, match=f"would be malformed; set {settings}"):
        run(replace(context, inputs={**context.inputs, "policy": policy}))
    (policy / "lineage.json").write_text(
        json.dumps(fields | {"grammar": "tearag", "format": "tags"})
    )
    assert run(replace(context, inputs={**context.inputs, "policy": policy}))["trajectories"] == 14


def test_a_rollout_reports_trajectories_and_starts_at_those_that_are_done(
    context: StageContext,
) -> None:
    progress = RecordedProgress()
    run(replace(context, progress=progress))
    assert progress.starts == [(14, "trajectories", 0)]
    assert progress.done == 14
    assert progress.values["tokens_per_second"] > 0
    checkpoints(context)[0].unlink()  # of two questions
    again = RecordedProgress()
    run(replace(context, progress=again))
    assert again.starts == [(14, "trajectories", 10)]
    assert again.done == 14


def checkpoints(context: StageContext) -> list[Path]:
    """The checkpoint files, in the order of the questions that they hold."""
    files = context.checkpoint_dir.glob("paths/*/paths-*.parquet")
    return sorted(files, key=lambda file: pq.read_table(file)["question_id"][0].as_py())


def output_bytes(context: StageContext) -> bytes:
    return (context.output / "trajectories.parquet").read_bytes()


def test_a_killed_run_rolls_out_only_what_no_checkpoint_holds(context: StageContext):
    run(context)
    expected = output_bytes(context)
    files = checkpoints(context)
    assert len(files) == 4  # 7 questions, 2 per batch
    kept = {file: file.stat().st_mtime_ns for file in files[:2]}
    for file in files[2:]:
        file.unlink()
    run(context)
    assert output_bytes(context) == expected
    assert {file: file.stat().st_mtime_ns for file in files[:2]} == kept


def test_with_candidates_the_shown_passages_without_triplets_are_counted(
    context: StageContext, tmp_path: Path
) -> None:
    run(context)
    graph, recorded = Graph(), tmp_path / "recorded.parquet"
    (tmp_path / "graph").mkdir()
    edges = graph.edges([Extracted("c1", "T", ["Ann", "born in", "Rome"])])
    write_triplets(tmp_path / "graph", edges, graph.entities)
    shown = [ContextItem("chunk", chunk, "T", "text", 0.5) for chunk in ("c1", "c2", "c3")]
    step = Step(subquery="?", context=[*shown, ContextItem("triplet", "c1:0", "", "a b c", 0.5)])
    of_run = [replace(one, steps=[step]) for one in trajectories(context)]
    write_parquet(recorded, of_run, Trajectory)
    changed = {
        "sampling": context.config.sampling.model_copy(update={"recorded": str(recorded)}),
        "graph": context.config.graph.model_copy(update={"scope": "candidates"}),
    }
    few = replace(
        context,
        config=context.config.model_copy(update=changed),
        inputs={**context.inputs, "graph": tmp_path / "graph"},
    )
    assert run(few) == {
        "questions": 7, "trajectories": 14, "shown_passages": 42, "shown_without_triplets": 28
    }  # fmt: skip


def damaged(content: bytes) -> list[bytes]:
    """Cut off, empty, and with one flipped bit in the middle of the data."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return [content[:middle], b"", flipped]


def test_deleted_and_damaged_checkpoints_are_rolled_out_again(
    context: StageContext, caplog: pytest.LogCaptureFixture
):
    run(context)
    expected = output_bytes(context)
    checkpoints(context)[0].unlink()
    run(context)
    assert output_bytes(context) == expected
    for number in range(3):
        first, *_ = checkpoints(context)
        first.write_bytes(damaged(first.read_bytes())[number])
        (context.output / "trajectories.parquet").unlink()
        (first.parent / "seconds.json").write_text(["", "[]", '{"total": null}'][number])
        run(context)
        assert output_bytes(context) == expected
        assert f"{first} is damaged" in caplog.text
        assert "not the seconds of earlier attempts" in caplog.text


def with_sampling(context: StageContext, **settings: int) -> StageContext:
    values = context.config.model_dump()
    values["sampling"] |= settings
    return replace(context, config=config.Config.model_validate(values))


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
    broken = Trajectory(
        "q/0", "q", "toy", "?", "single", [], [], "tearag", "x", logprobs=[None, float("nan")]
    )
    with pytest.raises(EngineError, match="token 1 of q/0 has log-probability nan"):
        written.add(broken, RolloutTimer(0.0, None, None, {}))


def test_the_adapter_changes_the_samples(context: StageContext, inputs: dict[str, Path]):
    token_ids = {}
    adapter = read_policy(inputs["policy"])
    for name, policy in (("base", Policy(None, "base")), ("adapter", adapter)):
        separate = replace(context, checkpoint_dir=context.checkpoint_dir / name)
        sampled, _ = roll_out_policy(separate, QUESTIONS, policy, temperature=0.0, samples=1)
        token_ids[name] = [trajectory.token_ids for trajectory in sampled]
    assert token_ids["base"] != token_ids["adapter"]


def test_a_repeated_question_id_is_an_error(context: StageContext):
    with pytest.raises(InputError, match="q0 occurs twice"):
        roll_out_policy(
            context, [*QUESTIONS, QUESTIONS[0]], Policy(None, "base"), temperature=0.0, samples=1
        )
