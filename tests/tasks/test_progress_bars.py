"""Bars for running stages, and quiet lines outside a terminal."""

import io
import os
import re
import subprocess
import sys
import time

from rich.console import Console

from pipeline.engine.progress import ProgressFile, ProgressRecord
from pipeline.engine.progress_bars import RunningStages, quiet_lines, table_of
from tests.tasks.counting_tasks import First, Waits, task
from tests.waiting import wait_until


def record(done, total, unit, rate, **values):
    return ProgressRecord(done, total, unit, rate, 27.0, values, os.getpid(), 0.0, time.time())


def four_stages() -> list[tuple[str, ProgressRecord]]:
    return [
        ("sample-1", record(1024, 2480, "trajectories", 38.0, tokens_per_second=5120.0)),
        ("train-1", record(30, 120, "steps", 0.5, loss=0.4321, margin=1.25)),
        ("corpus", record(5000, None, "chunks", None)),
        ("report", record(0, None, "", None)),
    ]


def test_a_row_shows_count_rate_remaining_time_and_values_and_the_last_the_whole_run():
    console = Console(record=True, force_terminal=True, width=140, file=io.StringIO())
    console.print(table_of(four_stages(), (42, "about 4 min left")))
    lines = console.export_text().splitlines()
    sample, train, corpus, report, run = (re.sub(r" +", " ", line).strip() for line in lines)
    assert re.fullmatch(
        r"sample-1 \S+ 41 % 1,024 of 2,480 trajectories 38/s, about 38 s left, 5,120 tokens/s",
        sample,
    )
    assert re.fullmatch(
        r"train-1 \S+ 25 % 30 of 120 steps 30/min, about 3 min left, loss 0.432, margin 1.25", train
    )
    assert corpus.endswith("s so far")
    assert "5,000 chunks" in corpus
    assert "starting" in report
    assert re.fullmatch(r"run \S+ 42 % of the run done about 4 min left", run)


def test_quiet_lines_come_once_in_an_interval(capfd):
    running = four_stages()[:1]
    lines: list[str] = []

    def printed() -> int:
        lines.extend(capfd.readouterr().out.splitlines())
        return len(lines)

    started = time.monotonic()
    with quiet_lines(lambda: running, lambda rows: None, seconds=0.2):
        wait_until(lambda: printed() > 1)
    assert printed() <= (time.monotonic() - started) / 0.2
    assert all(
        re.fullmatch(
            r"\d\d:\d\d:\d\d  sample-1 +41 % \(1,024 of 2,480 trajectories, 38/s, about 38 s left, "
            r"5,120 tokens/s\)",
            line,
        )
        for line in lines
    )


def test_a_line_on_the_run_is_printed_every_five_percent(capfd):
    shares = iter([None, (42, "about 4 min left"), (46, "x"), (47, "about 3 min left")])
    looks = []

    def whole(rows):
        looks.append(rows)
        return next(shares, None)

    with quiet_lines(list, whole, seconds=0.01):
        wait_until(lambda: len(looks) > 5)
    lines = [line.split(maxsplit=2)[1:] for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        ["run", "42 % of the run done, about 4 min left"],
        ["run", "47 % of the run done, about 3 min left"],
    ]


def begin(stage):
    path = stage.store.progress_file(stage.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    ProgressFile(path).start(10, "items")


def test_a_stage_on_a_machine_whose_clock_is_behind_is_shown(workspace, monkeypatch):
    stage = task(First, workspace)
    running = RunningStages([stage])
    with monkeypatch.context() as behind:
        behind.setattr(time, "time", lambda: 1e9)
        begin(stage)
    assert [label for label, _ in running()] == ["first"]


def test_records_of_earlier_runs_and_of_ended_processes_are_not_shown(workspace):
    stages = [task(First, workspace), task(Waits, workspace)]
    for stage in stages:
        begin(stage)
    assert RunningStages(stages)() == []  # written before
    running = RunningStages(stages)
    begin(stages[0])
    code = (
        "import sys; from pathlib import Path; from pipeline.engine.progress import ProgressFile; "
        "ProgressFile(Path(sys.argv[1])).start(10, 'items')"
    )
    path = stages[1].store.progress_file(stages[1].key)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    wait_until(lambda: len(running()) == 1)
    assert [label for label, _ in running()] == ["first"]
