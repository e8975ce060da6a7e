"""The memory of a command does not grow with the number of records."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import steep
from tests.cli.valid_records import COMMANDS, Command

FEW, MANY = 10, 50
BATCHES = 128, 192  # `steep score` scores 128 trajectories at once
PADDING = 40_000  # characters that a command copies or skips
# Bytes per record that a command may keep: ids and verdicts, or questions.
KEPT = {"calibrate": 700, "failures {dir}/t.jsonl": 2000}
ALLOWED = 1_000_000
UNIQUE = ("trajectory_id", "id", "question_id")


def lines(command: Command, count: int) -> bytes:
    records = []
    for number in range(count):
        record = dict(command.records[number % len(command.records)])
        if number >= len(command.records) and (
            command.unique or "--questions" in command.arguments
        ):
            record |= {key: f"{record[key]}{number}" for key in UNIQUE if key in record}
        records.append(json.dumps(record | {"padding": "x" * PADDING}) + "\n")
    return "".join(records).encode()


# One call of each command, and the one that holds questions.
CALLS = [
    *{one.arguments[0]: one for one in reversed(COMMANDS)}.values(),
    *(one for one in COMMANDS if "--questions" in one.arguments),
]


@pytest.mark.parametrize("command", CALLS, ids=lambda command: command.name)
def test_memory_is_flat(command: Command, tmp_path: Path) -> None:
    name, peaks = command.name, list[int]()
    few, many = BATCHES if name.startswith("score {in}") else (FEW, MANY)
    for count in (len(command.records), few, many):  # the first run imports packages
        file = tmp_path / f"{count}.jsonl"
        file.write_bytes(lines(command, count))
        call = command.call(tmp_path, file)
        if command.output and "-o" not in call:
            call += ["-o", str(tmp_path / "out.jsonl")]
        if peaks:
            tracemalloc.start()
        try:
            status, _, complaint = steep(call)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (status, complaint.partition("error")[1]) == (0, "")
    kept = next((size for start, size in KEPT.items() if name.startswith(start)), 0)
    assert peaks[2] - peaks[1] < ALLOWED + kept * (many - few)
