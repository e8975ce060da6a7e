"""The corpus stage drops overlapping training questions and reports them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Question
from pipeline.run.context import StageContext
from pipeline.stages.corpus import run
from tests.recorded_progress import RecordedProgress

CONFIGS = Path(__file__).parents[2] / "configs"
TEXTS = ["who wrote emma", "who painted guernica", "when did rome fall", "where is lake tovel"]


def context(tmp_path: Path, *overrides: str) -> StageContext:
    settings = config.load(
        CONFIGS / "embedded.yaml",
        (
            "data={}",
            f"data.root={tmp_path}",
            "corpus.files=[{path: corpus.jsonl}]",
            "corpus.chunk_words=2",
            *overrides,
        ),
    )
    (tmp_path / "corpus.jsonl").write_text('{"id": "d", "title": "T", "text": "one two three"}\n')
    rows = [json.dumps({"question": text, "answer": ["a"]}) + "\n" for text in TEXTS]
    (tmp_path / "nq.jsonl").write_text("".join(rows))
    (tmp_path / "test.jsonl").write_text(rows[1].replace("guernica", "Guernica?"))
    output = tmp_path / "out"
    output.mkdir()
    return StageContext(settings, "corpus", output, tmp_path / "checkpoints")


SAMPLING = "data.sampling=[{dataset: nq, path: nq.jsonl}]"
TEST = "data.test=[{dataset: nq, path: test.jsonl}]"


def test_overlapping_question_is_dropped_from_sampling_and_reported(tmp_path: Path) -> None:
    progress = RecordedProgress()
    stage = replace(context(tmp_path, SAMPLING, TEST), progress=progress)
    counts = run(stage)
    assert (progress.starts, progress.done) == ([(None, "chunks", 0)], 2)
    assert (counts["chunks"], counts["sampling"], counts["test"], counts["overlaps"]) == (
        2,
        3,
        1,
        1,
    )
    kept = read_records(stage.output / "questions/sampling.parquet", Question)
    assert [row.question for row in kept] == [TEXTS[0], TEXTS[2], TEXTS[3]]
    report = json.loads((stage.output / "overlap.json").read_text())
    assert [(row["split"], row["kind"], row["heldout"]) for row in report["dropped"]] == [
        ("sampling", "exact", "who painted Guernica?")
    ]
    chunks = read_records(stage.output / "chunks.parquet", Chunk)
    assert chunks == [Chunk("d-0", "T", "one two", "d"), Chunk("d-1", "T", "three", "d")]


def test_random_part_of_a_file_can_be_held_out(tmp_path: Path) -> None:
    held = "data.test=[{dataset: nq, path: nq.jsonl, limit: 2, select: random}]"
    counts = run(context(tmp_path, SAMPLING, held))
    assert (counts["sampling"], counts["test"]) == (2, 2)


def test_training_on_the_test_questions_raises_input_error(tmp_path: Path) -> None:
    stage = context(tmp_path, SAMPLING, SAMPLING.replace("sampling", "test"))
    with pytest.raises(InputError, match=r"every question repeats one of data\.test"):
        run(stage)


def test_repeated_question_in_a_split_raises_input_error(tmp_path: Path) -> None:
    twice = "data.test=[{dataset: nq, path: test.jsonl}, {dataset: nq, path: test.jsonl}]"
    with pytest.raises(InputError, match=r"occurs twice in data\.test"):
        run(context(tmp_path, twice))


FACTS = {
    "question": "who wrote lake tovel",
    "answer": "Ann",
    "context": [["Emma", ["By Ann."]]],
    "supporting_facts": [["Nobody", 0], ["Emma", 7]],
}


def hotpotqa(tmp_path: Path, *facts: list[list[object]]) -> str:
    rows = [{**FACTS, "_id": str(n), "supporting_facts": pair} for n, pair in enumerate(facts)]
    rows = [row | {"question": f"{row['question']} {n * 'x'}"} for n, row in enumerate(rows)]
    (tmp_path / "hotpotqa.json").write_text(json.dumps(rows))
    return "[{dataset: hotpotqa, path: hotpotqa.json}]"


def test_question_without_evidence_is_counted_and_left_out_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = hotpotqa(tmp_path, [["Nobody", 0], ["Emma", 7]], [["Emma", 0], ["Bo", 0]])
    stage = context(tmp_path, f"data.sampling={file}")
    assert run(stage)["sampling"] == 1
    (kept,) = read_records(stage.output / "questions/sampling.parquet", Question)
    assert kept.evidence == ["Emma: By Ann."]
    assert stage.notes["questions"] == {
        "sampling": {
            "supporting facts that name no sentence": 3,
            "questions none of whose supporting facts names a sentence": 1,
        }
    }
    assert "whose supporting facts names a sentence; left out" in capsys.readouterr().out


def test_question_without_evidence_is_kept_for_evaluation_and_counted(tmp_path: Path) -> None:
    file = hotpotqa(tmp_path, [["Nobody", 0]], [["Emma", 0]])
    stage = context(tmp_path, f"data.test={file}")
    assert run(stage)["test"] == 2
    counts = stage.notes["questions"]["test"]
    assert counts["multi-hop questions without golden evidence"] == 1


def test_training_file_without_any_evidence_raises_input_error(tmp_path: Path) -> None:
    file = hotpotqa(tmp_path, [["Nobody", 0]])
    with pytest.raises(
        InputError, match=r"hotpotqa\.json: supporting_facts: 1 questions, and none"
    ):
        run(context(tmp_path, f"data.sampling={file}"))
