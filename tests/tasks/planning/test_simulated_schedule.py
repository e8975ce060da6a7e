"""Schedules with GPUs and threads: nothing is given twice, and the order is that of Luigi's scheduler."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.cli.app import app
from tasks.execution.leases import Capacity
from tasks.planning.gpu_time import SECONDS_OF, gpu_seconds
from tasks.planning.schedule import Job, Placed, Room, busy_share, schedule
from tasks.planning.simulation import simulate
from tasks.planning.sizes import sizes_of
from tasks.run import task_for

PUBLISHED = [
    *("tearag-llama3-8b", "tearag-qwen2.5-14b", "hiprag-qwen2.5-3b", "hiprag-qwen2.5-7b"),
    *("prograph-qwen2.5-3b", "prograph-qwen2.5-7b"),
]


@st.composite
def cases(draw) -> tuple[list[Job], Room]:
    room = Room(draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 14))):
        before = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        jobs.append(
            Job(
                f"job-{number}",
                draw(st.sampled_from([0.5, 1.0, 2.0, 3.25, 7.0])),
                tuple(f"job-{other}" for other in sorted(set(before))),
                draw(st.integers(0, room.gpus)),
                draw(st.integers(1, room.threads)),
            )
        )
    return jobs, room


def running_at(placed: list[Placed], second: float) -> list[Placed]:
    return [one for one in placed if one.start <= second < one.end]


def check_no_double_lease(placed: list[Placed], room: Room) -> None:
    for moment in {one.start for one in placed}:
        running = running_at(placed, moment)
        devices = [device for one in running for device in one.devices]
        assert len(devices) == len(set(devices))
        assert all(0 <= device < room.gpus for device in devices)
        assert sum(one.job.threads for one in running) <= room.threads
        assert len(running) <= room.workers


@given(cases())
def test_no_device_is_given_twice_and_every_job_runs_once_after_its_inputs(case):
    jobs, room = case
    placed = schedule(jobs, room)
    check_no_double_lease(placed, room)
    assert sorted(one.job.label for one in placed) == sorted(job.label for job in jobs)
    ends = {one.job.label: one.end for one in placed}
    for one in placed:
        assert len(one.devices) == one.job.gpus
        assert all(ends[name] <= one.start for name in one.job.needs)


@given(cases())
def test_a_later_job_never_starts_while_an_earlier_one_that_fits_waits(case):
    jobs, room = case
    placed = schedule(jobs, room)
    order = {job.label: place for place, job in enumerate(jobs)}
    ends = {one.job.label: one.end for one in placed}
    for late in placed:
        running = [one.job for one in running_at(placed, late.start)]
        for early in placed:
            ready = max((ends[name] for name in early.job.needs), default=0.0)
            if order[early.job.label] < order[late.job.label] and ready <= late.start < early.start:
                assert not room.holds([*(job for job in running if job != late.job), early.job])


@given(cases())
@example(
    (
        [
            Job("one", 1, gpus=1, threads=1),
            Job("both", 1, gpus=2, threads=1),
            Job("after", 1, needs=("one",), threads=1),
            Job("long", 4, gpus=1, threads=1),
            Job("none", 1, threads=1),  # starts while "both" waits for the GPU of "long"
        ],
        Room(workers=2, gpus=2, threads=3),
    )
)
def test_the_order_is_that_of_luigi(case):
    """Its scheduler is asked for work at the same moments, with the resources of `tasks.build`."""
    from luigi.scheduler import Scheduler

    jobs, room = case
    luigi = Scheduler(resources={"gpus": room.gpus, "threads": room.threads})
    luigi.add_worker("w", [("workers", room.workers)])
    for place, job in enumerate(jobs):
        taken = {"threads": job.threads} | ({"gpus": job.gpus} if job.gpus else {})
        luigi.add_task(
            worker="w", task_id=job.label, status="PENDING", deps=list(job.needs), runnable=True,
            priority=len(jobs) - place, resources=taken, family="F", module="m", params={},
        )  # fmt: skip
    seconds = {job.label: job.seconds for job in jobs}
    running: dict[str, float] = {}
    starts: list[tuple[str, float]] = []
    now = 0.0
    while True:
        while len(running) < room.workers:
            name = luigi.get_work(worker="w", current_tasks=list(running))["task_id"]
            if name is None:
                break
            running[name] = now + seconds[name]
            starts.append((name, now))
        if not running:
            break
        now = min(running.values())
        for name in [name for name, end in running.items() if end == now]:
            del running[name]
            luigi.add_task(
                worker="w", task_id=name, status="DONE", family="F", module="m", params={}
            )
    assert starts == [(one.job.label, one.start) for one in schedule(jobs, room)]


def test_a_stage_over_all_gpus_reserves_them_against_later_ones():
    jobs = [
        *(Job("first", 1, gpus=1), Job("all", 2, ("first",), 2), Job("evaluation", 3, gpus=1)),
        *(Job(f"small-{number}", 5, ("first",), 1) for number in range(2)),
    ]
    placed = schedule(jobs, Room(9, 2))
    starts = {one.job.label: one.start for one in placed}
    assert starts == {"first": 0, "evaluation": 0, "all": 3, "small-0": 5, "small-1": 5}
    assert busy_share(placed, 2) == pytest.approx((1 + 3 + 4 + 10) / (2 * 10))


def test_a_job_that_fits_nowhere_is_refused():
    with pytest.raises(ValueError, match="job takes 3 GPUs and 0 threads; there are 2 and None"):
        schedule([Job("job", 1, gpus=3)], Room(1, 2))


@pytest.mark.parametrize("config", PUBLISHED)
def test_the_published_runs_lease_no_device_twice(config):
    report = task_for("report", config)
    capacity = Capacity.expected(report.settings)
    found = simulate(report, capacity)
    check_no_double_lease(list(found.placed), Room(capacity.workers, found.gpus, capacity.threads))
    assert found.gpus == report.settings.gpus
    trains = [one for one in found.placed if one.job.label.startswith("train-")]
    assert len(trains) == 3
    for train in trains:
        assert train.devices == tuple(range(found.gpus))
        running = running_at(list(found.placed), train.start)
        assert [one for one in running if one.devices] == [train]


def test_more_shards_keep_the_devices_busier():
    busy = []
    for shards in (1, 4):
        report = task_for("report", "prograph-qwen2.5-3b", (f"sampling.shards={shards}",))
        busy.append(simulate(report, Capacity.expected(report.settings)).busy)
    assert busy[0] < 0.8 * busy[1]


def seconds_of(stages: tuple[str, ...], *overrides: str) -> dict[str, float]:
    report = task_for("report", "tearag-llama3-8b", ("threads=32", *overrides))
    placed = simulate(report, Capacity.expected(report.settings)).placed
    return {one.job.label: one.job.seconds for one in placed if one.job.label in stages}


def test_joining_has_the_time_of_the_graph_and_of_the_indexes():
    joined = seconds_of(("graph", "index", "sample-1"))
    # 130.9 M triplets of 100 microseconds, and 75 GB of answers.
    assert joined["graph"] == pytest.approx(130.93e6 * 100e-6 + 3600 * 21.015e6 / 2e8, rel=0.01)
    assert 2 * 3600 < joined["index"] < 8 * 3600
    assert joined["sample-1"] == 30  # 80,000 trajectories
    whole = seconds_of(("graph",), "graph.shards=1")
    shard = seconds_of(("graph-shard-000",), "graph.shards=2")
    assert whole["graph"] == pytest.approx(
        2 * shard["graph-shard-000"] + 130.93e6 * 100e-6, rel=0.01
    )


def test_the_schedule_and_the_check_go_by_the_same_rates():
    report = task_for("report", "tearag-llama3-8b", ("shards=1",))
    placed = simulate(report, Capacity.expected(report.settings)).placed
    settings = report.settings
    hours = gpu_seconds(settings, sizes_of(settings))
    for stage, count in (("sample", 3), ("train", 3), ("evaluate-policy", 4)):
        jobs = [one.job for one in placed if one.job.label.rpartition("-")[0] == stage]
        assert len(jobs) == count
        taken = sum(job.seconds * max(job.gpus, 1) for job in jobs)
        assert taken == pytest.approx(hours[SECONDS_OF.get(stage, stage)])


def test_the_command_prints_the_schedule_of_a_run_without_its_data():
    options = ["plan", "--schedule", "--config", "tearag-llama3-8b"]
    printed = CliRunner().invoke(app, options)
    assert printed.exit_code == 0
    assert "sft-data" in printed.stdout
    assert "│ 0-7" in printed.stdout
    assert "GPUs: stages have the 8 GPUs for " in printed.stdout
    assert "times are assumed and not measured" in printed.stdout
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert found["gpus"] == 8
    assert 0 < found["busy"] <= 1
    assert found["stages"][0]["start"] == 0


def test_a_schedule_and_a_review_are_refused_together():
    result = CliRunner().invoke(app, ["plan", "--schedule", "--review"])
    assert result.exit_code != 0
