"""``steep mask``: its exit status, and ids that the tokenizer does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.malformed_inputs import steep
from tests.cli.valid_records import tokenizer_files

IDS = {
    "output": "askseensum",
    "token_ids": [0, 1, 2, 3],
    "spans": [[0, 3, "model"], [3, 7, "observation"], [7, 10, "model"]],
    "token_spans": [[0, 1, "model"], [1, 2, "observation"], [2, 4, "model"]],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, content in tokenizer_files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def mask(directory: Path, record: dict[str, Any]) -> tuple[int, str, str]:
    file = directory / "in.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return steep(["mask", str(file), "--tokenizer", str(directory)])


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({}, None),
        ({"token_ids": [2, 1, 2, 3]}, "ids decode to 'sumseensum' at offset 0"),
        ({"token_ids": [0, 2, 2, 3]}, "ids decode to 'umsum' at offset 4"),
        ({"token_ids": [0, 1, 0, 3]}, "ids decode to 'ask' at offset 7"),
        (
            {"token_spans": [[0, 2, "model"], [2, 4, "observation"]]},
            "ids decode to ' seensum' at offset 3",
        ),
        (
            {"spans": [[0, 3, "model"], [3, 3, "model"], [3, 7, "observation"], [7, 10, "model"]]},
            None,
        ),
    ],
)
def test_a_mismatch_in_masked_or_trained_text_is_exit_status_1(
    directory: Path, change: dict[str, Any], mismatch: str | None
) -> None:
    """Before, ids of trained text that spell another text gave exit status 0."""
    status, printed, complaint = mask(directory, IDS | change)
    found = json.loads(printed)["mismatch"]
    if mismatch is None:
        assert (status, complaint, found) == (0, "", None)
    else:
        assert (status, complaint) == (
            1,
            "text and tokens differ in 1 of 1 records; see mismatch\n",
        )
        assert mismatch in found


@pytest.mark.parametrize("token_id", [-1, 4, 10**9, 2**63 - 1])
def test_ids_outside_the_vocabulary_are_refused(directory: Path, token_id: int) -> None:
    status, printed, complaint = mask(directory, IDS | {"token_ids": [0, 1, token_id, 3]})
    assert (status, printed) == (2, "")
    assert complaint.endswith(
        f"in.jsonl:1: token_ids.2: {token_id} is not an id of the tokenizer, which has 0 to 3\n"
    )
