"""What reruns when questions change: the tasks of each split, on real small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.engine.fingerprint import content_of
from pipeline.engine.stage import StageTask
from tasks import task_for
from tests.tasks.declared import fingerprints

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "train.jsonl": ["who wrote emma", "who painted guernica", "when did rome fall"],
    "test.jsonl": ["who painted Guernica?", "where is lake tovel"],
    "other.jsonl": ["who painted guernica", "what is a quark"],
}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    for name, texts in QUESTIONS.items():
        rows = [json.dumps({"question": text, "answer": ["x"]}) for text in texts]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    document = {"title": "Emma", "text": "Ann wrote Emma."}
    (tmp_path / "documents.jsonl").write_text(json.dumps(document) + "\n")
    path = tmp_path / "own.yaml"
    path.write_text(
        f"base: {ROOT}/configs/embedded.yaml\n"
        f"runs_dir: {tmp_path}/runs\n"
        f"cache_dir: {tmp_path}/cache\n"
        "shards: 1\n"
        f"data: {{root: {tmp_path}, closed_world: null, sft: [], validation: [],\n"
        "       sampling: [{dataset: nq, path: train.jsonl}],\n"
        "       test: [{dataset: nq, path: test.jsonl}]}\n"
        "corpus: {files: [{path: documents.jsonl, format: jsonl}]}\n"
        "graph: {source: titles}\n"
    )
    return path


def task(stage: str, configuration: Path, *overrides: str) -> StageTask:
    return task_for(stage, str(configuration), overrides)


def test_each_split_reads_only_its_own_files(configuration: Path) -> None:
    before = fingerprints(config=str(configuration))
    for split, also in {
        "sft": set(),
        "sampling": set(),
        "validation": {"questions-sft", "questions-sampling"},
        "test": {"questions-sft", "questions-sampling"},
    }.items():
        other = f"data.{split}=[{{dataset: nq, path: other.jsonl}}]"
        after = fingerprints(other, config=str(configuration))
        changed = {label for label in before if before[label] != after[label]}
        splits = {label for label in changed if label.startswith("questions-")}
        assert splits == {f"questions-{split}", *also}
        assert not changed & {"corpus", "graph", "index"}


def test_sampling_reads_the_questions_alone_and_not_what_was_left_out(configuration: Path) -> None:
    """So another test file that leaves the same questions makes no sample stale."""
    sample = task("sample", configuration)
    assert sample.input_files["questions"] == ("questions.parquet",)


def test_a_file_outside_the_closed_world_is_a_raw_file(configuration: Path) -> None:
    """So its content, and not the world's, decides the fingerprint."""
    file = configuration.parent / "own test.jsonl"
    overrides = (
        f"runs_dir={configuration.parent}/runs",
        f"data.test=[{{dataset: nq, path: '{file}'}}]",
    )
    contents = []
    for text in QUESTIONS["test.jsonl"]:
        file.write_text(json.dumps({"question": text, "answer": ["x"]}) + "\n")
        questions = task("questions-test", ROOT / "configs" / "embedded.yaml", *overrides)
        assert (questions.inputs, questions.input_files) == ({}, {})
        contents.append(content_of(questions.settings, questions.files()))
    assert contents[0].keys() == contents[1].keys() == {str(file)}
    assert contents[0] != contents[1]


def test_gold_that_is_added_reads_all_questions_and_is_in_no_fingerprint_when_off(
    configuration: Path,
) -> None:
    plain, repaired = (
        task("corpus", configuration, f"corpus.add_gold={value}") for value in ("false", "true")
    )
    assert plain.key.inputs == {}
    assert set(plain.key.settings["corpus"]) == {"files", "chunk_words", "strict"}
    splits = {f"questions-{split}" for split in ("sft", "sampling", "validation", "test")}
    assert repaired.key.inputs.keys() == splits
    assert set(repaired.key.files) == {"documents.jsonl", "train.jsonl", "test.jsonl"}


def test_a_check_before_a_run_says_what_the_corpus_lacks(configuration: Path) -> None:
    """The document has no x, and no question has an answer besides; one is asked in both files."""
    assert list(task("coverage", configuration, "corpus.add_gold=true").notes()) == [
        f"data.{split}: questions whose gold passages or answers the corpus lacks: {count} of "
        f"{count} nq (100.0%)"
        for split, count in (("sampling", 2), ("test", 2))
    ]
    world = task("coverage", configuration, "data={closed_world: {}}")
    assert list(world.notes()) == []  # its files are not written yet


@pytest.mark.parametrize(
    ("sampling", "test", "lines"),
    [
        ("{path: train.jsonl", "{path: test.jsonl", {"1 questions repeat", "0 of 2 questions"}),
        ("{path: train.jsonl", "{path: train.jsonl, limit: 2", {"2 questions repeat"}),
        ("{path: train.jsonl, limit: 2", "{path: train.jsonl, limit: 1", {"1 questions repeat", "0 of 2 questions"}),
        ("{path: train.jsonl, share: [0, 0.001]", "{path: test.jsonl", set()),
    ],
)  # fmt: skip
def test_a_check_before_a_run_says_which_questions_repeat_held_out_ones(
    configuration: Path, sampling: str, test: str, lines: set[str]
) -> None:
    overrides = [
        f"data.{split}=[{file}, dataset: nq}}]"
        for split, file in (("sampling", sampling), ("test", test))
    ]
    text = "\n".join(task("questions-sampling", configuration, *overrides).notes())
    assert all(line in text for line in lines), text
    assert ("repeat one of data.test; left out" in text) == any("repeat" in one for one in lines)
