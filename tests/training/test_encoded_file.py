"""Encoded records in a file equal the records that were written."""

from __future__ import annotations

from pathlib import Path

from pipeline.training.encode import EncodedPair, EncodedSft
from pipeline.training.encoded_file import EncodedFile, write_encoded


def test_pairs_are_read_as_they_were_written(tmp_path: Path) -> None:
    pairs = [EncodedPair(f"p{n}", [9] * n, [2, 3], [4], [1, 0], [1]) for n in range(1, 600)]
    counts = write_encoded(tmp_path / "pairs.arrow", EncodedPair, iter(pairs))
    assert (counts.records, counts.tokens) == (599, sum(2 * n + 3 for n in range(1, 600)))
    assert counts.trained_tokens == 599 * 2
    stored = EncodedFile(tmp_path / "pairs.arrow", EncodedPair)
    assert list(stored) == pairs
    assert stored[300] == pairs[300]
    assert list(stored.lengths) == [n + 2 for n in range(1, 600)]
    assert list(stored.tokens) == [2 * n + 3 for n in range(1, 600)]
    row = {"prompt_ids": [9] * 301, "chosen_mask": [1, 0]}
    assert stored.dataset.select_columns([*row])[300] == row


def test_a_file_can_be_empty_and_replaces_what_a_kill_left(tmp_path: Path) -> None:
    (tmp_path / ".none.arrow.123.tmp").write_bytes(b"x")
    assert write_encoded(tmp_path / "none.arrow", EncodedSft, []).records == 0
    assert len(EncodedFile(tmp_path / "none.arrow", EncodedSft)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["none.arrow"]
