"""Stages ``questions-<split>``: question files to questions of one format (TeaRAG 4.3, table 2).

Input: the files of one split in the configuration's ``data`` block; for the splits that train also
the held-out questions, in the inputs ``questions-validation`` and ``questions-test``. Output:
``questions.parquet``, which is empty for a split without files, and for the splits that train
``overlap.json``: the questions that repeat a held-out question and are dropped. The splits that
train leave out a question whose supporting facts name no sentence of its context, because rewards
that match evidence would be zero for it, and a question whose answers normalize to nothing;
held-out splits keep both. The notes of the manifest count the questions that were left out, have no
golden evidence, or repeat another question of the split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config import Config, QuestionFile
from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question
from pipeline.corpus.overlap import THRESHOLD, Overlap, find_overlaps
from pipeline.corpus.questions.load import (
    REPEATED,
    UNANSWERABLE,
    Notes,
    load_questions,
)
from pipeline.corpus.questions.native import NO_FACT_FOUND
from pipeline.run.context import StageContext

FILE = "questions.parquet"
TRAINED = ("sft", "sampling")
HELD_OUT = ("validation", "test")
PREFIX = "questions-"


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the count of questions, and of dropped overlaps.

    The split is the part of the stage's name after ``questions-``. Raises InputError when an input
    file is unusable, a question id is repeated, or all questions of a split that trains repeat
    held-out questions.
    """
    split = context.stage.removeprefix(PREFIX)
    files: Sequence[QuestionFile] = getattr(context.config.data, split)
    context.progress.start(len(files), "files")
    notes = Notes()
    questions = read_split(split, _with_paths(context, files), context.seed, notes)
    for line in lines_of(f"data.{split}", notes, for_training=split in TRAINED):
        print(line)
    context.notes["questions"] = {name: count for name, count in notes.counts.items() if count}
    if split not in TRAINED:
        return {"questions": write_parquet(context.output / FILE, questions, Question)}
    questions, dropped = _without_overlaps(context, split, questions)
    write_parquet(context.output / FILE, questions, Question)
    _write_overlaps(context.output / "overlap.json", split, dropped)
    overlaps = sum(len(found) for found in dropped.values())
    return {"questions": len(questions), "overlaps": overlaps}


def _with_paths(
    context: StageContext, files: Iterable[QuestionFile]
) -> Iterator[tuple[QuestionFile, Path]]:
    for file in files:
        yield file, context.resolve(file.path)
        context.progress.advance()


def read_split(
    split: str, files: Iterable[tuple[QuestionFile, Path]], seed: int, notes: Notes
) -> list[Question]:
    """The questions of the files of a split, in order; repeated questions are counted in ``notes``.

    Raises InputError when a file is unusable or a question id is repeated.
    """
    by_id: dict[str, Question] = {}
    for number, (file, path) in enumerate(files):
        for question in load_questions(
            path,
            file.dataset,
            required=file.filter,
            select=file.select,
            limit=file.limit,
            seed=seed + number,
            for_training=split in TRAINED,
            notes=notes,
        ):
            if question.question_id in by_id:
                raise InputError.at(
                    path,
                    f"question id {question.question_id} occurs twice in data.{split}; name each "
                    "file once per split, or make the ids distinct",
                )
            by_id[question.question_id] = question
    questions = list(by_id.values())
    notes.count_repeats(questions)
    return questions


def question_files(config: Config) -> list[QuestionFile]:
    """The question files of all splits and rounds; a file that is named twice comes once."""
    rounds = (config.of_round(number) for number in range(1, config.rounds + 1))
    named = (
        file
        for settings in (config, *rounds)
        for split in (*TRAINED, *HELD_OUT)
        for file in getattr(settings.data, split)
    )
    return list({file.path: file for file in named}.values())


def lines_of(name: str, notes: Notes, *, for_training: bool = False) -> Iterator[str]:
    """A sentence for each reason to leave out or notice questions of the set ``name``."""
    for reason, count in notes.counts.items():
        if not count:
            continue
        line = f"{name}: {count:,} {reason}"
        if reason in (NO_FACT_FOUND, UNANSWERABLE) and for_training:
            line += "; left out"
        elif reason == UNANSWERABLE:
            line += "; every prediction scores 0"
        line += notes.first(reason)
        if reason == REPEATED:
            repeat, first = next(iter(notes.repeated.items()))
            line += f"; all are kept; the first: {repeat}, as {first}"
        yield line


def _without_overlaps(
    context: StageContext, split: str, questions: list[Question]
) -> tuple[list[Question], dict[str, list[Overlap]]]:
    """The questions that repeat no held-out question, and the overlaps by held-out split."""
    dropped: dict[str, list[Overlap]] = {}
    for heldout in HELD_OUT:
        held = read_records(context.inputs[PREFIX + heldout] / FILE, Question)
        dropped[heldout] = find_overlaps(questions, held) if questions and held else []
        if count := len(dropped[heldout]):
            print(f"data.{split}: {count:,} questions repeat one of data.{heldout}; left out")
    ids = {overlap.question_id for overlaps in dropped.values() for overlap in overlaps}
    kept = [question for question in questions if question.question_id not in ids]
    if questions and not kept:
        raise InputError(
            f"data.{split}: every question repeats one of data.test or data.validation; "
            "use other files, or fewer held-out questions of the same file (select: random)"
        )
    return kept, dropped


def _write_overlaps(path: Path, split: str, dropped: Mapping[str, list[Overlap]]) -> None:
    pairs = [
        {"split": split, "heldout_split": heldout, **dataclasses.asdict(overlap)}
        for heldout, overlaps in dropped.items()
        for overlap in overlaps
    ]
    counts = {
        f"{split} in {heldout}": {
            kind: sum(overlap.kind == kind for overlap in overlaps) for kind in ("exact", "near")
        }
        for heldout, overlaps in dropped.items()
    }
    write_json(path, {"threshold": THRESHOLD, "counts": counts, "dropped": pairs})
