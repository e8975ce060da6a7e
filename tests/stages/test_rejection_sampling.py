"""Rejection sampling: which sampled trajectories are kept, and that SFT trains on their ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.policy import RejectionSampling
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, read_records, write_jsonl, write_parquet
from pipeline.core.records import Question, SftExample, Step, Trajectory
from pipeline.engine.context import StageContext
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.encode import encode_sft
from pipeline.training.sft_data.rejection_sampling import keep, split
from tasks import sft_data, task_for
from tests.conversations.test_chat_template import opened
from tests.rollout.test_conversations import call
from tests.rollout.test_conversations import rolled as conversation
from tests.rollout.test_sampler import TOKENIZER
from tests.rollout.test_sampler import rolled as tags
from tests.smallest import small_config, small_trajectory


def sampled(question: int, *queries: str, **fields: object) -> Trajectory:
    steps = [Step(subquery=query) for query in queries]
    fields = {"answer": "The Rome", "answers": ["rome"], "format_ok": True} | fields
    return small_trajectory(question_id=f"q{question}", steps=steps, **fields)


def test_right_well_formed_and_new_paths_are_kept_up_to_the_limit() -> None:
    outcomes = [
        (sampled(1, "Who?"), "kept"),
        (sampled(1, "who ?"), "repeated path"),
        (sampled(1, "Who?", "Where?", answer="Paris"), "wrong answer"),
        (sampled(1, "Who?", "Where?", format_ok=False, stop="malformed"), "malformed"),
        (sampled(1, "Who?", "When?", stop="max_tokens", format_ok=False), "no end"),
        (sampled(1, "Who?", "What?", stop="retrieval_error"), "retrieval failed"),
        (sampled(1, "Who?", "Where?"), "kept"),
        (sampled(1, "Where?"), "beyond limit"),
        (sampled(2, "Who?", dataset="toy"), "kept"),
    ]
    kept = keep((trajectory for trajectory, _ in outcomes), RejectionSampling(per_question=2))
    assert kept.trajectories == [one for one, outcome in outcomes if outcome == "kept"]
    nq, toy = kept.table()
    assert (nq["dataset"], nq["trajectories"], nq["kept"], nq["rate"]) == ("nq", 8, 2, 0.25)
    assert {name for name, value in nq.items() if value == 1} == {
        *(outcome for _, outcome in outcomes if outcome != "kept"),
        "answered questions",
    }
    assert (toy["dataset"], toy["kept"], toy["rate"]) == ("toy", 1, 1.0)


def test_a_question_is_on_one_side_of_the_split() -> None:
    trajectories = [sampled(number // 3, f"{number}?") for number in range(60)]
    train, test = split(trajectories, 0.1, seed=0)
    assert (len(train), len(test)) == (54, 6)
    assert len({one.question_id for one in test}) == 2
    assert not {one.question_id for one in test} & {one.question_id for one in train}


def run(tmp_path: Path, *trajectories: Trajectory) -> list[SftExample]:
    """The training examples of the stage, which keeps from these trajectories."""
    settings = small_config(sft_data={"rejection_sampling": {}})
    write_parquet(tmp_path / "in" / "trajectories.parquet", trajectories, Trajectory)
    (tmp_path / "out").mkdir()
    inputs = {"trajectories": tmp_path / "in"}
    sft_data.run(StageContext(settings, "sft-data", tmp_path / "out", tmp_path, inputs))
    return read_records(tmp_path / "out" / "train.parquet", SftExample)


def assert_trains_on_the_sampled_ids(
    tokenizer: Tokenizer, trajectory: Trajectory, example: SftExample
) -> None:
    [encoded] = encode_sft(tokenizer, [example])
    assert encoded.input_ids == trajectory.prompt_ids + trajectory.token_ids
    writers = [writer for start, end, writer in trajectory.token_spans for _ in range(start, end)]
    assert encoded.labels == [-100] * len(trajectory.prompt_ids) + [
        token if writer == "model" else -100
        for token, writer in zip(trajectory.token_ids, writers, strict=True)
    ]


def test_tags_are_trained_on_as_sampled(tmp_path: Path) -> None:
    [trajectory] = tags()
    [example] = run(tmp_path, trajectory, replace(trajectory, answer="Paris"))
    assert example.hops == 2
    assert_trains_on_the_sampled_ids(TOKENIZER, trajectory, example)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1 training and 0 test examples" in card
    assert "| toy | 2 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0.500 | 1 |" in card
    assert "| 0123456789abcdef (base) |" in card
    [row] = json.loads((tmp_path / "out" / "statistics.json").read_text())["datasets"]
    assert row["rate"] == 0.5


@pytest.mark.parametrize("mode", ["qwen2.5", "llama-3.1"])
def test_conversations_are_trained_on_as_sampled(
    mode: str, tmp_path: Path, real_data: Path
) -> None:
    trajectory = conversation(real_data, mode, call(mode, "a"), call(mode, "b"), "Answer: x")
    [example] = run(tmp_path, trajectory)
    assert_trains_on_the_sampled_ids(opened(real_data, mode).tokenizer, trajectory, example)


def test_the_error_for_no_kept_trajectory_counts_the_reasons(tmp_path: Path) -> None:
    [trajectory] = tags()
    wrong = [replace(trajectory, answer="Paris"), replace(trajectory, format_ok=False)]
    said = r"none of the 2 trajectories .*teacher \(base\).*wrong answer: 1, malformed: 1.*samples"
    with pytest.raises(InputError, match=said):
        run(tmp_path, *wrong)
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_the_cold_start_samples_the_teacher_over_its_own_questions() -> None:
    chosen = "sft_data.rejection_sampling={samples: 16, temperature: 0.7}"
    [sample] = task_for("sft-data", "embedded", [chosen]).inputs.values()
    assert sample.label == "sft-sample"
    assert sample.inputs["questions"].label == "questions-sft"
    assert sample.inputs["policy"].label == "given-policy-base"
    assert sample.slice()["sampling"]["samples"] == 16
    assert sample.slice()["sampling"]["temperature"] == 0.7
    other = task_for("sft-data", "embedded", [chosen, "sampling.samples=4"]).inputs.values()
    assert [one.key for one in other] == [sample.key]


@pytest.mark.parametrize("form", ["tags", "tools"])
def test_a_file_of_a_teacher_is_matched_by_question_and_tokenized_anew(
    form: str, tmp_path: Path, real_data: Path
) -> None:
    if form == "tags":
        tokenizer, [trajectory] = TOKENIZER, tags()
    else:
        tokenizer = opened(real_data, "qwen2.5").tokenizer
        trajectory = conversation(
            real_data, "qwen2.5", f"So.\n{call('', 'a')}", "Found.\nAnswer: Rome"
        )
    other = replace(trajectory, question="Who else?")
    written = replace(trajectory, token_ids=[1], answers=["unknown"], question_id="log-1")
    write_jsonl(tmp_path / "teacher.jsonl", map(as_json, [written, other]))
    question = Question("own", "mine", f" {trajectory.question.lower()}", ["Rome"], "multi")
    write_parquet(tmp_path / "in" / "questions.parquet", [question], Question)
    (tmp_path / "out").mkdir()
    teacher = {"teacher": str(tmp_path / "teacher.jsonl")}
    start = {"prompt": {"system": "S"}, "format": form, "grammar": "tearag"}
    settings = small_config(sft_data={"rejection_sampling": teacher}, **start)
    context = StageContext(
        settings, "sft-data", tmp_path / "out", tmp_path, {"questions": tmp_path / "in"}
    )
    assert sft_data.run(context) == {"train": 1, "test": 0}
    [example] = read_records(tmp_path / "out" / "train.parquet", SftExample)
    assert (example.question_id, example.token_ids) == ("own", [])
    statistics = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert statistics["not a question of data.sft"] == 1
    [encoded] = encode_sft(tokenizer, [example])
    ids = trajectory.prompt_ids + trajectory.token_ids
    assert encoded.input_ids[: len(ids) - 1] == ids[:-1]
    assert encoded.labels.count(-100) == len(ids) - trajectory.tokens.thinking
    other = {"grammar": "search-r1"}
    config = small_config(sft_data={"rejection_sampling": teacher}, **other)
    with pytest.raises(InputError, match=r"teacher.jsonl:1: .*; grammar is search-r1"):
        sft_data.run(replace(context, config=config))
