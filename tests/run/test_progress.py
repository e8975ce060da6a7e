"""The progress file of a stage: its content, how often it is written, and what it must not stop."""

import json

import pytest

from pipeline.engine.progress import (
    ProgressFile,
    ProgressRecord,
    read_failure,
    read_progress,
)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(tmp_path, clock):
    return ProgressFile(tmp_path / "0123456789abcdef.progress.json", clock)


def record(done=1024, total=2480, unit="trajectories", rate=38.0, **values):
    return ProgressRecord(done, total, unit, rate, 27.0, values, 1, 0.0, 0.0)


def test_the_file_holds_counts_rate_and_values(progress, clock):
    progress.start(200, "steps", done=50)
    clock.now += 10
    progress.advance(30)
    clock.now += 10
    progress.show(loss=0.5, margin=2)
    content = json.loads(progress.path.read_text())
    assert content["rate"] == 1.5  # 30 steps in 20 seconds; those from before do not count
    assert (content["done"], content["total"], content["unit"]) == (80, 200, "steps")
    assert (content["seconds"], content["values"]) == (20.0, {"loss": 0.5, "margin": 2})
    found = read_progress(progress.path)
    assert found.to_json() == {
        "done": 80, "total": 200, "unit": "steps", "percent": 40.0, "rate": 1.5,
        "remaining_seconds": 80.0, "values": {"loss": 0.5, "margin": 2},
    }  # fmt: skip


def test_it_is_written_at_most_twice_a_second_and_when_all_is_done(progress, clock):
    progress.start(100, "texts")
    written = []
    for _ in range(99):
        clock.now += 0.1
        progress.advance()
        written.append(json.loads(progress.path.read_text())["done"])
    assert len(set(written)) <= 22  # in 9.9 seconds
    progress.advance()
    assert read_progress(progress.path).done == 100


def test_the_rate_is_that_of_the_last_minute(progress, clock):
    progress.start(None, "chunks")
    for step in range(20):
        clock.now += 10
        progress.advance(100 if step < 10 else 10)
    assert read_progress(progress.path).rate == pytest.approx(1, rel=0.05)


def test_a_disk_that_takes_nothing_stops_nothing(tmp_path, clock):
    progress = ProgressFile(tmp_path / "absent" / "x.progress.json", clock)
    progress.begin()
    progress.start(2, "steps")
    progress.advance(2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"done": 1}'])
def test_a_torn_file_is_no_progress(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert read_progress(path) is None
    assert read_failure(path) is None
    assert read_progress(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("counted", "sentence"),
    [
        (record(), "41 % (1,024 of 2,480 trajectories, 38/s, about 38 s left)"),
        (record(80, 200, "steps", None, loss=0.51234), "40 % (80 of 200 steps, loss 0.512)"),
        (
            record(5000, None, "chunks", 0.5, tokens_per_second=1234.5),
            "5,000 chunks, 30/min, 1,234 tokens/s",
        ),
        (record(0, None, "", None), "starting"),
        (record(0, 0, "questions", None), "0 of 0 questions"),
    ],
)
def test_the_sentence_for_people_has_what_is_known(counted, sentence):
    assert counted.sentence() == sentence
