"""Commands on files: the fields that they need, the fields that they add, and what they refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.outputs import metrics, parse
from pipeline.cli.pair import pair_file
from pipeline.cli.retrieval import hyper, kag
from pipeline.cli.score import score
from pipeline.core.errors import InputError
from tests.cli.valid_records import HYPER, JUDGED

OUTPUT = (
    "Step 1:\nImportant entity: Byron\nSubquery: Who was Byron?\n<Reference>\n"
    'Evidence 1: Title: "Byron" Text: A poet.\n</Reference>\nSummary: A poet.\nFinal answer: poet'
)
END = OUTPUT.index("Summary")
START = OUTPUT.index("\nEvidence")
SPANS = [[0, START, "model"], [START, END, "observation"], [END, len(OUTPUT), "model"]]
MINIMAL = {"output": OUTPUT, "hop": "multi", "answers": ["a poet"], "evidence": ["Byron, a poet"]}


def jsonl(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def call(tmp_path: Path, command: Callable[..., Any], *rows: Any, **options: Any) -> list[Any]:
    output = tmp_path / f"{command.__name__}.jsonl"
    command(source=jsonl(tmp_path / "in.jsonl", *rows), output=output, **options)
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_parse_needs_only_the_output_and_copies_other_fields(tmp_path: Path) -> None:
    rows = call(
        tmp_path,
        parse,
        {"output": OUTPUT, "mine": [1]},
        {"output": "no", "spans": None},
        {"output": OUTPUT, "spans": SPANS},
        grammar="tearag",
    )
    assert rows[0]["mine"] == [1]
    assert (rows[0]["format_ok"], rows[0]["answer"]) == (True, "poet")
    assert rows[0]["steps"][0]["subquery"] == "Who was Byron?"
    assert (rows[1]["format_ok"], rows[1]["steps"]) == (False, [])
    assert rows[1]["format_error"] == "expected 'Step 1:' at offset 0"
    assert rows[2]["steps"] == rows[0]["steps"]


def test_kag_ranks_one_chunk_as_solved_by_hand(tmp_path: Path) -> None:
    """Subquery q, chunk c (weight 0.5), title t: c = (q + t) / 2, t = c / 3, q = c / 6 + 1 / 2.

    So c = 0.6 q, q = 5 / 9 and c = 1 / 3.
    """
    chunk = {"id": "c", "title": "T", "score": 0}
    record = {"subquery": "?", "entities": [], "chunks": [chunk], "triplets": []}
    (row,) = call(tmp_path, kag, record)
    assert row["ranking"] == [{"kind": "chunk", "id": "c", "mass": pytest.approx(1 / 3)}]
    assert row["selected"] == ["c"]
    with pytest.raises(InputError, match=r"in\.jsonl:1: .*c"):
        call(tmp_path, kag, record | {"chunks": [chunk, chunk]})
    with pytest.raises(InputError, match=r"in\.jsonl:1: alpha is 1\.0; expected"):
        call(tmp_path, kag, record | {"alpha": 1})


def test_hyper_ranks_as_solved_by_hand(tmp_path: Path) -> None:
    """As in tests/retrieval/test_informativeness.py: log 2, and (log 2 + .6 log 1.5) / 1.6."""
    [all_of, best] = call(tmp_path, hyper, HYPER | {"mine": 1}, HYPER | {"k": 1})
    assert all_of["mine"] == 1
    assert [edge["id"] for edge in all_of["ranking"]] == ["e2", "e1"]
    scores = [edge["score"] for edge in all_of["ranking"]]
    assert scores == pytest.approx([math.log(2), (math.log(2) + 0.6 * math.log(1.5)) / 1.6])
    assert best["ranking"] == all_of["ranking"][:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k: 0; expected at least 1"),
        ({"query_entities": ["Z"]}, "query_entities: 'Z' has no embedding in entities"),
        ({"hyperedges": [{"id": "e", "entities": ["A"]}] * 2}, "hyperedges: two have the same id"),
        ({"entities": {"A": [1.0], "B": [1.0, 2.0], "C": [1.0]}}, "embeddings of 1 and of 2"),
        (
            {"entities": {"A": [1e308, 1e308], "B": [1.0, 0.0], "C": [1.0, 0.0]}},
            "a list of numbers below 1e\\+100",
        ),
    ],
)
def test_hyper_refuses_invalid_fields(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"in\.jsonl:1: .*{message}"):
        call(tmp_path, hyper, HYPER | change)


def test_score_gives_prograph_rewards_for_each_step(tmp_path: Path) -> None:
    """Step 1 finds {Up, Ann}, of which the question names Up; step 2 is the answer."""
    facts = [{"text": "It is by her.", "entities": ["Up", "Ann"]}, {"text": "Up is old."}]
    row = {
        "question": "Who made Up?",
        "answers": ["Ann"],
        "answer": "Ann",
        "format_ok": True,
        "steps": [{"think": "t", "query": "q", "context": facts}, {"think": "Ann."}],
    }
    with_values, without_values, unparsed = call(
        tmp_path,
        score,
        row | {"values": [0.25, 0.75, 1.0]},
        row,
        {
            "question": "Who made Up?",
            "answers": ["Ann"],
            "entities": ["Up", "Ann"],
            "output": "<think>t</think><query>q</query><knowledge>\nUp is by Ann.\n</knowledge>"
            "<think>t</think><answer>Ann</answer>",
        },
        reward="prograph",
    )
    assert with_values["rewards"]["steps"] == [
        {"progress": 0.5, "connectivity": 0.5, "answer_reach": 0.5, "total": 2.75},
        {"progress": 0.25, "connectivity": 0.0, "answer_reach": 0.0, "total": 2.125},
    ]
    assert with_values["rewards"]["total"] == (2.75 + 2.125) / 2
    assert [step["progress"] for step in without_values["rewards"]["steps"]] == [None, None]
    assert unparsed["rewards"]["steps"] == without_values["rewards"]["steps"]
    with pytest.raises(InputError, match=r"in\.jsonl:1: values: 1 for 2 steps"):
        call(tmp_path, score, row | {"values": [0.5]}, reward="prograph")


def test_score_parses_missing_fields_and_keeps_present_ones(tmp_path: Path) -> None:
    parsed = {
        "hop": "single",
        "answers": ["x"],
        "steps": [{"subquery": "b", "context": [{"text": "c"}]}] * 2,
        "answer": "x",
        "format_ok": True,
    }
    broken = MINIMAL | {"stop": "retrieval_error"}
    rows = call(tmp_path, score, MINIMAL, parsed, broken)
    rewards = rows[0]["rewards"]
    assert (rewards["format"], rewards["outcome"], rewards["consistency"]) == (1, 1, 1)
    assert rewards["memory"] == {"subquery": [1 / 3], "context": [1], "summary": [2 / 3]}
    assert rewards["process"] == pytest.approx(0.1 + 0.3 * (1 / 3 + 1 + 2 / 3))
    assert rows[1]["rewards"]["outcome"] == 0.5
    assert rows[2]["rewards"] is None


def test_score_then_pair_then_funnel(tmp_path: Path) -> None:
    ids = [{"question_id": "q", "trajectory_id": name} for name in "abc"]
    scored = call(
        tmp_path,
        score,
        MINIMAL | ids[0],
        MINIMAL | ids[1] | {"output": "Well, " + OUTPUT},
        MINIMAL | ids[2] | {"stop": "retrieval_error"},
    )
    funnel = tmp_path / "funnel.jsonl"
    pairs = call(tmp_path, pair_file, *scored, funnel=funnel)
    [pair] = pairs
    assert (pair["question_id"], pair["kind"]) == ("q", "format")
    assert (pair["chosen_id"], pair["rejected_id"]) == ("a", "b")
    assert (pair["chosen_total"], pair["rejected_total"]) == (pytest.approx(2.7), 0.0)
    assert pair["chosen_rewards"] == scored[0]["rewards"]
    assert pair["rejected"] == [{"role": "assistant", "content": "Well, " + OUTPUT}]
    bins = [json.loads(line) for line in funnel.read_text().splitlines()]
    assert [(row["trajectory_id"], row["bin"]) for row in bins] == [
        ("a", "chosen"),
        ("b", "rejected-format"),
        ("c", "retrieval-error"),
    ]


@pytest.mark.parametrize(
    ("command", "good", "bad", "complaint"),
    [
        (metrics, {"answers": []}, "{oops", "in.jsonl:2: not valid JSON"),
        (parse, {"output": ""}, {"output": "abc", "spans": [[0, 2, "model"]]}, "spans end at 2"),
        (score, MINIMAL, {"answers": ["x"], "hop": "single"}, "2: needs output, messages, or st"),
        (score, MINIMAL, MINIMAL | {"evidence": None}, "in.jsonl:2: evidence: missing"),
    ],
)
def test_a_malformed_record_stops_before_anything_is_written(
    tmp_path: Path,
    command: Callable[..., Any],
    good: dict[str, Any],
    bad: Any,
    complaint: str,
) -> None:
    with pytest.raises(InputError) as caught:
        call(tmp_path, command, good, bad)
    assert complaint in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_unknown_name_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'xml' is not known; this version has tearag"):
        call(tmp_path, parse, MINIMAL, grammar="xml")
    with pytest.raises(InputError, match="'mine' is not known; this version has tearag"):
        call(tmp_path, score, MINIMAL, reward="mine")
    with pytest.raises(InputError, match="no such file"):
        metrics(source=tmp_path / "none.jsonl", output="-")


def test_hiprag_rewards_take_verdicts_from_the_steps_and_pair_by_margin(tmp_path: Path) -> None:
    better = [step | {"verdict": "no"} for step in JUDGED["steps"]]
    right = JUDGED | {"trajectory_id": "b", "output": "b", "steps": better}
    wrong = JUDGED | {
        "trajectory_id": "c", "output": "c", "answer": "Oslo", "steps": [{"search": "q"}],
    }  # fmt: skip
    scored = call(tmp_path, score, JUDGED, right, wrong, reward="hiprag")
    assert scored[0]["rewards"] == {
        "answer": 1.0,
        "format": 1.0,
        "steps": [{"kind": "over", "verdict": "yes"}, {"kind": "under", "verdict": "no"}],
        "n": 2,
        "n_corr": 1,
        "total": pytest.approx(1.2),
    }
    assert scored[2]["rewards"]["total"] == pytest.approx(0.2)
    pairs = call(tmp_path, pair_file, *scored)
    assert [(row["chosen_id"], row["rejected_id"], row["kind"]) for row in pairs] == [
        ("b", "a", "margin"), ("b", "c", "easy"),
    ]  # fmt: skip
    assert pairs[0]["rejected_total"] == pytest.approx(1.2)


def test_hiprag_rewards_need_a_verdict_on_each_parsed_step(tmp_path: Path) -> None:
    output = (
        "<think><step><reasoning>r</reasoning><conclusion>c</conclusion></step></think>"
        "<answer>Rome</answer>"
    )
    record = {"trajectory_id": "a", "answers": ["Rome"], "output": output}
    with pytest.raises(InputError, match=r"in.jsonl:1: steps.0.verdict: missing"):
        call(tmp_path, score, record, reward="hiprag")
    [parsed] = call(tmp_path, parse, record, grammar="hiprag")
    parsed["steps"][0]["verdict"] = "no"
    [scored] = call(tmp_path, score, parsed, reward="hiprag")
    assert scored["rewards"]["total"] == pytest.approx(1.4)
