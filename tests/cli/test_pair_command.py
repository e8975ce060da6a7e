"""``steep pair`` on files: order of the records, duplicates, and values that it refuses."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.options import Chosen
from pipeline.cli.pair import pair_file
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import ChatMessage, Message, Pair
from tests.cli.malformed_inputs import accepted, steep


def scored(question: str, sample: int, outcome: float, **more: Any) -> dict[str, Any]:
    return {
        "trajectory_id": f"{question}/{sample}",
        "question_id": question,
        "hop": "multi",
        "sample": sample,
        "output": f"text {sample % 3}",
        "rewards": {"format": 1.0, "outcome": outcome, "process": 0.9},
        **more,
    }


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


TERMS = {"format": 1.0, "outcome": 1.0, "process": 0.9, "subquery": 0.5, "memory": {"summary": [1]}}
NAMES = ("format", "outcome", "process")
RECORDS = [scored(f"q{n}", k, (1.0, 0.5, 0.1, 0.0)[k]) for n in range(20) for k in range(4)]


def test_interleaved_questions_give_the_pairs_of_adjacent_ones(tmp_path: Path) -> None:
    """Also from standard input, which can be read only once."""
    shuffled = random.Random(1).sample(RECORDS, len(RECORDS))
    sources = {
        "adjacent": write(tmp_path / "a.jsonl", RECORDS),
        "shuffled": write(tmp_path / "b.jsonl", shuffled),
    }
    results = []
    for name, source in sources.items():
        output, funnel = tmp_path / f"{name}.out", tmp_path / f"{name}.funnel"
        assert pair_file(source, output, funnel=funnel) == 20
        results.append([sorted(path.read_text().splitlines()) for path in (output, funnel)])
    assert results[0] == results[1]
    assert len(results[0][1]) == len(RECORDS)
    status, printed, _ = steep(["pair", "-"], sources["shuffled"].read_bytes())
    assert (status, sorted(printed.splitlines())) == (0, results[0][0])


def test_a_pair_is_whole_and_can_be_viewed(tmp_path: Path) -> None:
    """Texts, tokens and all reward terms of both sides, as in the pairs of a run, with both totals."""
    tokens = {"prompt_ids": [7], "token_ids": [1, 2, 3], "policy": "p"}
    spans = {"token_spans": [[0, 2, "model"], [2, 3, "observation"]]}
    records = [
        scored("q", 0, 1.0, rewards=TERMS, **tokens, **spans) | {"question": "Who?"},
        scored("q", 1, 0.1, rewards={**TERMS, "outcome": 0.1}) | {"question": "Who?"},
    ]
    source, output = write(tmp_path / "in.jsonl", records), tmp_path / "pairs.jsonl"
    assert pair_file(source, output, config=Chosen("embedded")) == 1
    line = json.loads(output.read_text())
    assert line.pop("chosen_total") == 2.9
    assert line.pop("rejected_total") == 2.0
    assert line.keys() == {field.name for field in dataclasses.fields(Pair)} - {"tools"}
    [pair] = read_records(output, Pair)
    assert pair.prompt == [Message("system", "Answer step by step."), Message("user", "Who?")]
    assert (pair.chosen, pair.rejected) == (
        [ChatMessage("assistant", "text 0")],
        [ChatMessage("assistant", "text 1")],
    )
    assert (pair.chosen_ids, pair.prompt_ids, pair.policy) == ([1, 2, 3], [7], "p")
    assert pair.chosen_spans == [(0, 2, "model"), (2, 3, "observation")]
    assert pair.rejected_rewards == {**TERMS, "outcome": 0.1}
    printed = accepted("view", str(output), "--kind", "easy")
    assert "Who?" in printed
    assert "text 1" in printed  # of the messages: its trajectory has no tokens


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("tearag-outcome-format", ("q/1", "q/0", "format", 1.9, 1.0)),
        ("tearag-outcome", ("q/0", "q/2", "easy", 1.0, 0.2)),
    ],
)
def test_a_configuration_decides_which_terms_a_file_is_paired_by(
    tmp_path: Path, config: str, expected: tuple[object, ...]
) -> None:
    """Malformed and right, well-formed and nearly right, and wrong with the best process."""
    terms = [(0.0, 1.0, 0.9), (1.0, 0.9, 0.1), (1.0, 0.2, 2.0)]
    records = [
        scored("q", sample, 0.0, rewards=dict(zip(NAMES, values, strict=True)))
        for sample, values in enumerate(terms)
    ]
    output = tmp_path / "out"
    pair_file(write(tmp_path / "in.jsonl", records), output, config=Chosen(config))
    [pair] = map(json.loads, output.read_text().splitlines())
    keys = ("chosen_id", "rejected_id", "kind", "chosen_total", "rejected_total")
    assert tuple(pair[key] for key in keys) == expected


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ({"question": "Where is Oslo?"}, {"question": "Who wrote Hamlet?"}, False),
        ({"question": "Where is Oslo?"}, {"question": "where is Oslo"}, True),
        ({"prompt_ids": [1, 2]}, {"prompt_ids": [12]}, False),
        ({"prompt_ids": [1, 2]}, {}, True),
    ],
)
def test_a_pair_has_one_question_and_one_prompt(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], fits: bool
) -> None:
    """Before, files of two data sets with the ids 0, 1, 2, … gave pairs across their questions."""
    rows = [scored("q", 0, 1.0) | one, scored("p", 0, 1.0), scored("q", 1, 0.0) | other]
    source = write(tmp_path / "in.jsonl", rows)
    if fits:
        assert pair_file(source, tmp_path / "out") == 1
        return
    with pytest.raises(
        InputError, match=rf"in.jsonl:3: {next(iter(one))}: differs from an earlier"
    ):
        pair_file(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trajectory_id": "q0/0"}, "in.jsonl:81: trajectory_id: 'q0/0' occurs twice"),
        ({"rewards": 5}, "in.jsonl:81: rewards: "),
        ({"rewards": None}, "in.jsonl:81: rewards: missing; run steep score first"),
        ({"rewards": {"format": "1", "outcome": 1.0, "process": 1.0}}, "rewards.format is "),
        (
            {"rewards": {"format": 10**400, "outcome": 1.0, "process": 1.0}},
            f"in.jsonl:81: rewards.format is 1{'0' * 57} …; expected a finite number",
        ),
        ({"rewards": {"format": 1e308, "outcome": 1e308, "process": 1.0}}, "their sum is larger"),
        ({"rewards": {"format": 1.0, "answer": 1.0, "total": 1.0}}, "question q19: trajectories"),
    ],
)
def test_a_bad_record_far_from_the_others_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "in.jsonl", [*RECORDS, scored("q19", 9, 0.0) | change])
    with pytest.raises(InputError) as caught:
        pair_file(source, tmp_path / "out", funnel=tmp_path / "funnel")
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]
