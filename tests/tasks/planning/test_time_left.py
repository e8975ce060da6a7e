"""The share of a run that is done and the seconds until its end, from measured and guessed seconds."""

from pipeline.engine.plan.time_left import EMBEDDED, RunTime, Timed, time_left
from pipeline.engine.stage import walk_configured
from tasks import task_for
from tests.tasks.counting_tasks import First, Waits, task
from tests.tasks.small_run import commit_text


def test_a_stage_takes_as_long_as_the_last_one_of_its_kind():
    stages = [
        Timed("sft", took=60, here=True),
        Timed("sample", took=40, here=True),
        Timed("train", took=20, here=True),
        Timed("sample", so_far=10),
        Timed("train"),
    ]
    # 130 s of 180 s are done; two stages at once: 130 s of stages took 65 s.
    assert time_left(stages, {}, elapsed=65) == (130 / 180, 25)


def test_earlier_outputs_of_the_store_say_what_a_kind_takes():
    stages = [Timed("sft", took=60), Timed("pair", took=2, here=True), Timed("train")]
    assert time_left(stages, {"train": 38}, elapsed=2) == (0.62, 38)
    assert time_left(stages, {}, elapsed=2) is None  # nothing tells what training takes


def test_guesses_are_multiplied_by_measured_over_guessed_seconds():
    stages = [
        Timed("index", guess=10, took=30, here=True),
        Timed("sft", guess=20, took=60, here=True),
        Timed("sample", guess=5),
        Timed("report", guess=0),
    ]
    assert time_left(stages, {}, elapsed=90) == (90 / 105, 15)


def test_a_stage_that_takes_longer_than_expected_is_at_its_end():
    stages = [Timed("sample", took=40, here=True), Timed("sample", so_far=70), Timed("sample")]
    assert time_left(stages, {}, elapsed=80) == (80 / 120, 40)


def test_shards_share_the_work_of_their_stage():
    stages = [
        Timed("sample", took=100),  # of an earlier command, with its shards
        Timed("sample", took=30, part=0.5, here=True),
        Timed("sample", part=0.5),
        Timed("sample", part=0),
    ]
    assert time_left(stages, {}, elapsed=30) == (130 / 160, 30)


def test_nothing_is_said_before_a_twentieth_is_done_and_after_the_end():
    stages = [Timed("world", guess=2, took=2, here=True), Timed("sft", guess=60)]
    assert time_left(stages, {}, elapsed=9) is None
    assert time_left([Timed("world", took=2, here=True)], {}, elapsed=2) is None


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
