"""``steep metrics --judge``, by the facts of the closed world and by an endpoint; refused input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.core.record_io import write_jsonl
from pipeline.core.row_files import read_jsonl
from pipeline.engine.run import run
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused, steep
from tests.llm.fake_endpoint import FakeEndpoint, Response, completion


@pytest.fixture(scope="module")
def directory(with_world: Path) -> Iterator[Path]:
    """Ten questions of the world, answered in other words, wrongly, and not at all."""
    with chdir(with_world):
        world = run(task_for("world", "embedded"))
        rows = [row for _, row in read_jsonl(world / "nq_test.jsonl")][:10]
        others = [*rows[1:], rows[0]]
        records = []
        for row, other in zip(rows, others, strict=True):
            gold = {"question": row["question"], "answers": row["answer"]}
            records += [
                gold | {"answer": f"I found that it is {row['answer'][0]}."},
                gold | {"answer": other["answer"][0]},
                gold | {"answer": None},
            ]
        write_jsonl("answers.jsonl", records)
        yield with_world


def judged(*options: str) -> tuple[list[str], str]:
    status, printed, told = steep(["metrics", "answers.jsonl", "--judge", *options])
    assert status == 0, told
    return [json.loads(line)["judged"] for line in printed.splitlines()], told


def cells(table: str, name: str) -> list[str]:
    [line] = [line for line in table.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_the_facts_of_the_world_accept_other_words(directory: Path) -> None:
    rulings, table = judged()
    assert rulings == ["yes", "no", "no"] * 10
    [measured, *_] = map(json.loads, accepted("metrics", "answers.jsonl").splitlines())
    assert (measured["cem"], "judged" in measured) == (1.0, False)
    assert cells(table, "the judge") == ["10", "20", "0", "100.0", "100.0", "100.0"]
    assert cells(table, "EM") == ["0", "30", "0", "66.7", "–", "0.0"]  # whole sentences
    assert cells(table, "CEM") == ["10", "20", "0", "100.0", "100.0", "100.0"]


def test_a_model_s_verdicts_are_cached_and_measured(directory: Path) -> None:
    """It agrees with all, is unreadable on one question, and is asked once about each answer."""
    [first, *_] = [row for _, row in read_jsonl(directory / "answers.jsonl")]

    def script(text: str, earlier: int) -> str | Response:
        unreadable = f"<query>{first['question']}</query>" in text
        return Response(body=completion("?" if unreadable else "<answer>True</answer>"))

    with FakeEndpoint(script) as server:
        endpoint = {"base_url": server.url, "model": "m", "retries": 0}
        setting = f"answer_judge={json.dumps({'backend': 'openai', 'endpoint': endpoint})}"
        options = ("--set", setting, "--set", f"cache_dir={directory / 'cache'}")
        rulings, table = judged(*options)
        assert rulings == ["unknown", "unknown", "no", *["yes", "yes", "no"] * 9]
        # 9 of 18 known verdicts on answers are true, and so are 10 on no answer.
        assert cells(table, "the judge") == ["18", "10", "2", "67.9", "50.0", "100.0"]
        asked = sum(server.request_counts.values())
        assert asked == 18 + 2 * 3  # an unreadable verdict is asked for three times
        judged(*options)
        assert sum(server.request_counts.values()) == asked + 2 * 3


def test_what_cannot_be_judged_is_refused(directory: Path) -> None:
    assert "has neither answer_judge nor a closed world" in refused(
        "metrics", "answers.jsonl", "--judge", "-c", "musique-sample"
    )
    assert "read with --judge alone" in refused("metrics", "answers.jsonl", "-c", "embedded")
    assert "--table cannot be used with --judge" in refused(
        "metrics", "answers.jsonl", "--judge", "--table"
    )
    write_jsonl("bad.jsonl", [{"question": "q", "answers": ["a"]}, {"question": "q", "answers": 3}])
    assert "bad.jsonl:2: answers" in refused("metrics", "bad.jsonl", "--judge")
