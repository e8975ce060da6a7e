"""Plans from finished outputs with known seconds and counts."""

from pathlib import Path

import pytest

from tasks.run import walk
from tests.tasks.planning.finished_runs import finish, finish_all, plan, report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the closed world is kept below the current directory
    return tmp_path


def stages(task, workers=1):
    return {stage.label: stage for stage in plan(task, workers).stages}


def test_without_earlier_outputs_every_time_is_unknown(folder: Path) -> None:
    made = plan(report(folder))
    assert {stage.state for stage in made.stages} == {"run"}
    assert made.unknown == made.stages
    assert all(stage.source is None and stage.cost is None for stage in made.stages)
    # The configuration alone gives these: 310 questions before filters, 8 samples of each.
    assert next(s for s in made.stages if s.label == "sample-1").amounts["trajectories"] == 2480


def test_a_finished_run_has_nothing_to_do(folder: Path) -> None:
    finish_all(report(folder))
    made = plan(report(folder))
    assert {stage.state for stage in made.stages} == {"done"}
    assert (made.running, made.wall_seconds) == ((), 0)


def test_another_seed_is_expected_to_take_what_the_first_run_took(folder: Path) -> None:
    finish_all(report(folder))
    found = stages(report(folder, "seed=1", name="second"))
    assert found["world"].state == "done"
    assert found["sample-1"].seconds == pytest.approx(106)
    assert found["sample-1"].amounts["trajectories"] == 1920  # 240 of the 310 pass the filters
    assert found["sample-1"].amounts["generated_tokens"] == pytest.approx(192_000)
    assert found["sample-1"].amounts["reranked_pairs"] == pytest.approx(48_000)
    assert found["sample-1"].source == "embedded sample-1"
    assert found["sample-1"].size == 1000
    assert found["train-1"].seconds == pytest.approx(50)
    assert not plan(report(folder, "seed=1", name="second")).unknown


def test_more_samples_cost_more_trajectories_and_no_second_start_of_the_engine(
    folder: Path,
) -> None:
    finish_all(report(folder))
    found = stages(report(folder, "sampling.samples=16"))
    assert found["sft"].state == "done"
    assert found["sample-1"].amounts["trajectories"] == 3840
    assert found["sample-1"].seconds == pytest.approx(10 + 2 * 96)
    assert found["sample-1"].size == pytest.approx(2000)
    assert found["score-1"].seconds == pytest.approx(2 * 24)
    assert found["train-1"].seconds == pytest.approx(10 + 2 * 40)  # twice the pairs
    assert found["train-1"].amounts["training_tokens"] == pytest.approx(1_000_000)
    assert found["train-1"].size == 1000  # an adapter does not grow with them


def test_rounds_and_epochs_scale_training(folder: Path) -> None:
    finish_all(report(folder))
    found = stages(report(folder, "rounds=2", "dpo.round_epochs=[2, 1]"))
    assert found["train-1"].state == "done"
    assert found["train-2"].seconds == pytest.approx(10 + 40 / 2)
    assert found["train-2"].source == "embedded train-1"
    assert found["sample-2"].amounts["trajectories"] == 1920


def test_fewer_questions_and_examples_take_their_share(folder: Path) -> None:
    finish_all(report(folder))
    limits = "data.test=[{dataset: nq, path: nq_test.jsonl, limit: 50}]"
    found = stages(report(folder, "sft_data.sizes={3: 350}", limits))
    assert found["sft"].seconds == pytest.approx(10 + 70 / 2)
    # 400 questions were 400 before filters, so 50 of them are expected.
    assert found["evaluate-policy-0"].amounts["trajectories"] == pytest.approx(50)
    assert found["evaluate-policy-0"].seconds == pytest.approx(10 + 40 / 8)


def test_texts_that_were_embedded_before_are_not_embedded_again(folder: Path) -> None:
    finish_all(report(folder))
    second = report(folder, "seed=1", name="second")
    assert stages(second)["index"].seconds == pytest.approx(85)  # there is no cache
    (folder / "runs/cache").mkdir()
    found = stages(second)["index"]
    assert (found.seconds, found.note) == (0, "results are cached")
    fewer = report(folder, "data.closed_world.nq_test=10", name="fewer-questions")
    assert stages(fewer)["index"].seconds == 0
    other = report(folder, "data.closed_world.documents=3000", name="third")
    assert stages(other)["index"].seconds == pytest.approx(2 * 85)


def test_another_model_or_engine_says_nothing_about_sampling(folder: Path) -> None:
    finish_all(report(folder))
    found = stages(report(folder, "engine.kind=transformers"))
    assert found["sample-1"].seconds is None
    assert found["sample-1"].amounts["trajectories"] == 1920
    assert found["sft"].state == "done"
    assert found["train-1"].seconds == pytest.approx(50)  # trains without that engine


def test_the_nearest_output_is_the_one_to_go_by(folder: Path) -> None:
    """This machine first, then equal settings, then the same round."""
    first = report(folder, "rounds=2")
    finish_all(first)
    other = report(folder, "sampling.temperature=0.7", name="other")
    for task in (other, report(folder, "seed=9", name="abroad")):
        sample = task.upstream()["sample-1"]
        device = "cpu (999 cores)" if task is not other else None
        finish(sample, wall_seconds=1.0, **({"device": device} if device else {}))
    found = stages(report(folder, "seed=1", "rounds=2", name="third"))
    assert found["sample-2"].source == "embedded sample-2"
    found = stages(report(folder, "sampling.temperature=0.7", "seed=2", name="fourth"))
    assert found["sample-1"].source == "other sample-1"


def test_another_machine_is_named(folder: Path) -> None:
    finish(report(folder).upstream()["sample-1"], device="NVIDIA H100")
    found = stages(report(folder, "seed=1", name="second"))["sample-1"]
    assert found.note == "measured on NVIDIA H100"
    assert found.gpu_seconds == found.seconds


def test_a_resumed_output_is_the_last_to_go_by(folder: Path) -> None:
    """Its seconds are those of its last attempt."""
    finish_all(report(folder))
    near = report(folder, "seed=3", name="near")
    finish(near.upstream()["sample-1"], wall_seconds=1.0, resumed=True)
    assert stages(report(folder, "seed=1", name="second"))["sample-1"].source == "embedded sample-1"


def test_damaged_manifests_are_passed_over(folder: Path) -> None:
    finish_all(report(folder))
    directory = report(folder).upstream()["sample-1"].directory
    (directory / "manifest.json").write_text('{"key": 1}')
    found = stages(report(folder, "seed=1", name="second"))["sample-1"]
    assert found.seconds is None


def test_workers_shorten_the_wall_time(folder: Path) -> None:
    finish_all(report(folder))
    second = report(folder, "seed=1", "threads=4", name="second")
    alone, together = plan(second, 1), plan(second, 2)
    assert alone.wall_seconds == pytest.approx(sum(stage.seconds for stage in alone.stages[1:]))
    # The index beside questions, sft-data and sft; the evaluation of policy 0 beside sampling.
    assert together.wall_seconds == pytest.approx(alone.wall_seconds - 87 - 50)
    # With two threads the two processes of training have none beside them.
    fewer = plan(report(folder, "seed=1", "threads=2", name="second"), 2)
    assert fewer.wall_seconds == pytest.approx(alone.wall_seconds - 7 - 50)


def test_shards_share_the_trajectories(folder: Path) -> None:
    finish_all(report(folder))
    found = stages(report(folder, "sampling.shards=4", "sampling.temperature=0.7"))
    assert found["sample-shard-1-000"].amounts["trajectories"] == 480
    assert found["sample-shard-1-000"].seconds == pytest.approx(10 + 96 / 4)
    assert found["sample-1"].seconds is None  # joining shards has not been measured
    assert found["sample-1"].amounts["trajectories"] == 1920
    assert found["score-shard-1-003"].seconds == pytest.approx(24 / 4)


def test_prices_of_the_configuration_give_the_cost(folder: Path) -> None:
    endpoint = "{base_url: 'http://localhost:1/v1', model: m, prices: {prompt: %s, completion: %s}}"
    by_model = ("graph.source=llm", "graph.endpoint=" + endpoint % (1, 2))
    task = report(folder, *by_model)
    for needed in (task.upstream()["corpus"], task.upstream()["graph"]):
        work = {
            "chunks": 1500,
            "chat.prompt_tokens": 2_000_000,
            "chat.completion_tokens": 500_000,
        }
        finish(needed, **({"work": work} if needed.stage == "graph" else {}))
    dearer = ("graph.source=llm", "graph.endpoint=" + endpoint % (10, 20))
    found = stages(report(folder, *dearer, "data.closed_world.documents=3000", name="second"))
    assert found["graph"].cost == pytest.approx(2 * (2 * 10 + 0.5 * 20))
    assert found["sample-1"].cost is None


def test_shards_share_the_work_and_the_cost_and_the_joined_stage_has_the_rows(
    folder: Path,
) -> None:
    endpoint = "{base_url: 'http://localhost:1/v1', model: m, prices: {prompt: 10, completion: 20}}"
    by_model = ("graph.source=llm", f"graph.endpoint={endpoint}")
    whole = report(folder, *by_model)
    for needed in (task for task in walk(whole) if task.stage in ("world", "corpus", "graph")):
        work = {
            "chunks": 1500,
            "chat.prompt_tokens": 2_000_000,
            "chat.completion_tokens": 500_000,
        }
        finish(needed, **({"work": work} if needed.stage == "graph" else {}))
    twice = "data.closed_world.documents=3000"
    found = stages(report(folder, *by_model, twice, "shards=4", name="second"))
    assert found["graph-shard-003"].cost == pytest.approx((2 * 10 + 0.5 * 20) * 2 / 4)
    assert found["graph-shard-003"].seconds == pytest.approx(3 * 2 / 4)
    assert (found["graph"].cost, found["graph"].seconds) == (None, None)
    assert found["graph"].amounts["chunks"] == 3000
    assert found["graph"].amounts["triplets"] == 10_000
    assert found["index-shard-000"].amounts["texts"] == (3000 + 4000 + 10_000) / 4
    assert found["index"].amounts["texts"] == 17_000
    assert set(found["index"].needs) >= {f"index-shard-00{n}" for n in range(4)}
