"""The share of a run that is done and the seconds until its end, from measured and guessed seconds."""

import pytest

from pipeline.engine.plan.time_left import EMBEDDED, RunTime, Timed, time_left
from pipeline.engine.stage import walk_configured
from tasks import task_for
from tests.tasks.counting_tasks import First, Waits, task
from tests.tasks.small_run import commit_text

EARLIER = [Timed("sft", took=60), Timed("pair", took=2, here=True), Timed("train")]


@pytest.mark.parametrize(
    ("stages", "before", "elapsed", "expected"),
    [
        (  # 130 s of 180 s are done; two stages at once: 130 s of stages took 65 s
            [
                *(Timed("sft", took=60, here=True), Timed("sample", took=40, here=True)),
                *(Timed("train", took=20, here=True), Timed("sample", so_far=10), Timed("train")),
            ],
            *({}, 65, (130 / 180, 25)),
        ),
        (EARLIER, {"train": 38}, 2, (0.62, 38)),
        (EARLIER, {}, 2, None),  # nothing tells what training takes
        (  # guesses are multiplied by measured over guessed seconds
            [
                Timed("index", guess=10, took=30, here=True),
                *(Timed("sft", guess=20, took=60, here=True), Timed("sample", guess=5)),
            ],
            *({}, 90, (90 / 105, 15)),
        ),
        (  # a stage that takes longer than expected is at its end
            [Timed("sample", took=40, here=True), Timed("sample", so_far=70), Timed("sample")],
            *({}, 80, (80 / 120, 40)),
        ),
        (  # shards share the work of their stage; the first ran in an earlier command
            [
                *(Timed("sample", took=100), Timed("sample", took=30, part=0.5, here=True)),
                *(Timed("sample", part=0.5), Timed("sample", part=0)),
            ],
            *({}, 30, (130 / 160, 30)),
        ),
        # nothing is said before a twentieth is done and after the end
        ([Timed("world", guess=2, took=2, here=True), Timed("sft", guess=60)], {}, 9, None),
        ([Timed("world", took=2, here=True)], {}, 2, None),
    ],
)
def test_a_stage_takes_as_long_as_the_last_one_of_its_kind_or_its_guess(
    stages: list[Timed],
    before: dict[str, float],
    elapsed: float,
    expected: tuple[float, float] | None,
) -> None:
    assert time_left(stages, before, elapsed) == expected


def test_complete_stages_count_with_the_seconds_of_their_manifests(workspace):
    first, waits = task(First, workspace), task(Waits, workspace)
    shards = {"shard-000": {"wall_seconds": 1}}
    commit_text(first, "5", wall_seconds=5.0, shards=shards)
    assert [stage.took for stage in RunTime([first, waits]).stages] == [6.0, None]


def test_the_first_run_with_the_tiny_reader_is_guessed_from_the_embedded_run(tmp_path):
    """The variant has five times the questions of the rounds, and the same cold start."""

    def guesses(config: str) -> dict[str, float | None]:
        report = task_for("report", config, (f"runs_dir={tmp_path}",))
        tasks = list(walk_configured(report))
        assert EMBEDDED.keys() | {"world"} == {
            one.stage for one in tasks
        }  # it is in no run's store
        return {stage.kind: stage.guess for stage in RunTime(tasks).stages}

    assert guesses("embedded") == {**EMBEDDED, "world": 0.0}
    full = guesses("embedded-full")
    assert full["sft"] == EMBEDDED["sft"]
    assert EMBEDDED["sample"] * 1.5 < full["sample"] < EMBEDDED["sample"] * 3


def test_the_first_run_with_another_model_is_guessed_from_the_plan(tmp_path):
    """700 examples of 1,000 tokens at 94 tokens/s of a core."""
    small = ("model.base=HuggingFaceTB/SmolLM2-135M-Instruct", f"runs_dir={tmp_path}")
    stages = RunTime(list(walk_configured(task_for("report", "embedded", small)))).stages
    guesses = {stage.kind: stage.guess for stage in stages}
    assert guesses["pair"] == 0
    assert round(guesses["sft"]) == 7448


def test_after_the_cold_start_the_first_run_says_how_long_the_rest_takes(tmp_path):
    report = task_for("report", "embedded", (f"runs_dir={tmp_path}",))
    tasks = list(walk_configured(report))
    clock = iter((0.0, 160.0))
    run = RunTime(tasks, lambda: next(clock))
    for one in tasks[: tasks.index(next(one for one in tasks if one.stage == "sft")) + 1]:
        one.attempt.seconds = 2.0 * EMBEDDED.get(one.stage, 1.0)  # a machine of half the speed
    # 184 s of stages took 160 s, because some ran side by side; 818 s are left, which will take 711.
    assert run({}) == (18, "about 12 min left")
