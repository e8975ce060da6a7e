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
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.config import Config, QuestionFile
from pipeline.config.run import SFT
from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.records import Question
from pipeline.core.text import tokenize
from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.stage import LightTask, StageTask
from tasks.world import DataTask

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.knowledge.corpus.overlap import Overlap
    from pipeline.knowledge.corpus.questions.load import Keep, Notes

# Later stages read this file; ``overlap.json`` is for people.
QUESTIONS = "questions.parquet"
QUESTIONS_READ = {"questions": (QUESTIONS,)}


class Questions(DataTask, LightTask):
    """The questions of one split in one format."""

    version = 4  # limit counts what share and the held-out questions leave
    split: ClassVar[str]

    @property
    def needed_split(self) -> bool:
        """Whether a run cannot do without questions of this split."""
        own = self.settings.evaluation
        return self.split in (own.split, own.final_split)

    @property
    def paths(self) -> tuple[str, ...]:
        named = (name for file in self._question_files for name in (file.path, *file.gold.values()))
        return tuple(dict.fromkeys(named))

    @property
    def _question_files(self) -> tuple[QuestionFile, ...]:
        files: tuple[QuestionFile, ...] = getattr(self.settings.data, self.split)
        return files

    def faults(self) -> Iterator[str]:
        from pipeline.knowledge.corpus.first_records import question_faults

        yield from super().faults()
        if not self._question_files and self.needed_split:
            yield f"data.{self.split} has no files, and the run needs its questions; add one"
        for file, path in self._raw_questions():
            yield from question_faults(path, file)
            for dataset, gold in file.gold.items():
                yield from question_faults(Path(gold), QuestionFile(dataset=dataset, path=gold))

    def notes(self) -> Iterator[str]:
        """A sentence for each kind of question that the stage will leave out or find odd.

        Every record is read, unless a file has more than 64 MiB or is not written yet. Raises
        InputError for a malformed record.
        """
        questions, notes = self.small
        if questions is not None:
            yield from notes.lines(f"data.{self.split}", for_training=self.split in TRAINED)
            if self.held_out is not None:
                yield from self.held_out.lines(self.split, questions)
        yield from self.about(questions)

    def about(self, questions: Sequence[Question] | None) -> Iterator[str]:
        """Further notes about the questions; None if they were not read."""
        return iter(())

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The held-out questions, as far as `small` reads them; None for these themselves."""
        return None

    @cached_property
    def small(self) -> tuple[list[Question] | None, Notes]:
        """The questions, None if a file has more than 64 MiB or is not written yet; and notes.

        Repetitions of held-out questions are left out. Raises InputError. Held-out files are read
        once, although every split that trains compares its questions with theirs.
        """
        from pipeline.knowledge.corpus.first_records import is_small
        from pipeline.knowledge.corpus.questions.load import Notes

        files, notes = list(self._raw_questions()), Notes()
        small = (is_small(path, *map(Path, file.gold.values())) for file, path in files)
        if len(files) < len(self._question_files) or not all(small):
            return None, notes
        without = None if self.held_out is None else self.held_out.without
        found = read_split(self.split, files, self.settings.seed, notes, without)
        return found if without is None else without(found), notes

    def _raw_questions(self) -> Iterator[tuple[QuestionFile, Path]]:
        """The question files that exist before the run."""
        raw = self.files()
        for file in self._question_files:
            if raw.keys() >= {file.path, *file.gold.values()}:
                gold = {dataset: str(raw[path]) for dataset, path in file.gold.items()}
                yield file.model_copy(update={"gold": gold}), Path(raw[file.path])


class _TrainingQuestions(Questions):
    """The questions of a split that trains, except repetitions of held-out questions."""

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        heldout = (QuestionsValidation, QuestionsTest)
        return {**self.world(), **{task.stage: self.clone(task) for task in heldout}}

    @cached_property
    def held_out(self) -> HeldOut:
        return HeldOut({split: self.clone(SPLITS[split]).small[0] or [] for split in HELD_OUT})


class QuestionsSft(_TrainingQuestions):
    """Questions for the cold start."""

    stage = "questions-sft"
    help = "questions of the cold start"
    split = "sft"
    reads = ("data.sft", "data.root", "seed")

    @property
    def needed_split(self) -> bool:
        return self.settings.start == SFT

    def about(self, questions: Sequence[Question] | None) -> Iterator[str]:
        """Whether the examples of the cold start can be made of the questions, or the first."""
        from pipeline.knowledge.corpus.questions.load import read_questions

        first = (
            question
            for file, path in self._raw_questions()
            for _, question in read_questions(path, file.dataset, required=file.filter)
        )
        looked = list(islice(first if questions is None else questions, _LOOKED_AT))
        if looked and self.settings.sft_data.rejection_sampling is None:
            yield from supply_notes(self.settings, looked, whole=looked == questions)


class QuestionsSampling(_TrainingQuestions):
    """Questions of the rounds; with ``round``, of a round with its own ``data.sampling``."""

    stage = "questions-sampling"
    help = "questions of the rounds"
    split = "sampling"
    reads = ("data.sampling", "data.root", "seed")
    round = luigi.OptionalIntParameter(default=None, description="round with its own questions")

    @property
    def needed_split(self) -> bool:
        return self.settings.rounds > 0

    def about(self, questions: Sequence[Question] | None) -> Iterator[str]:
        """Which rewards the questions allow."""
        from pipeline.methods import method
        from pipeline.methods.advice import suited_method

        settings, kind = self.settings, self.settings.grammar
        if not questions:
            return
        suited, why = suited_method(questions, judges=settings.judges is not None)
        # Without triplets only passages make a cold start, and `init own` chooses as much.
        by_passages = settings.start == SFT and settings.graph.source == "none"
        if kind == suited:
            yield f"data.sampling: grammar {kind} fits: {why}"
        elif not settings.method.step_rewards and not by_passages:
            yield f"data.sampling: grammar is {kind}, and {suited} fits: {why}"
        if method(kind).record_needs != "evidence":
            return
        bare = Counter(question.hop for question in questions if not question.evidence)
        if count := bare["unknown"]:
            yield (
                f"data.sampling: {count:,} of {len(questions):,} questions have neither hops nor "
                f"evidence, so grammar {kind} counts outcome and format alone for them; add "
                "evidence for its process reward, or let judges decide (base: embedded-hiprag.yaml)"
            )
        if (count := bare["multi"]) and settings.pairs.terms == "all":
            least = min(settings.pairs.multi_process, settings.pairs.multi_process_relaxed)
            yield (
                f"data.sampling: {count:,} of {len(questions):,} questions are multi-hop without "
                f"evidence, so their process reward is at most "
                f"{settings.rewards.tearag.consistency:g} and no answer reaches "
                f"pairs.multi_process ({least:g}); leave out their hop, add evidence, or "
                "set pairs.terms to outcome-format"
            )

    @cached_property
    def settings(self) -> Config:
        return self.run_settings if self.round is None else self.run_settings.of_round(self.round)

    @property
    def round_number(self) -> int | None:
        return None if self.round is None else int(self.round)


class QuestionsValidation(Questions):
    """Questions to choose settings by."""

    stage = "questions-validation"
    help = "questions to choose settings by"
    split = "validation"
    reads = ("data.validation", "data.root", "seed")


class QuestionsTest(Questions):
    """Questions of the final evaluation."""

    stage = "questions-test"
    help = "questions of the final evaluation"
    split = "test"
    reads = ("data.test", "data.root", "seed")


SPLITS: dict[str, type[Questions]] = {
    task.split: task
    for task in (QuestionsSft, QuestionsSampling, QuestionsValidation, QuestionsTest)
}


def questions(task: StageTask, split: str) -> StageTask:
    """The task of the questions of a split that ``task`` reads: sft, sampling, validation or test.

    A round with its own ``data.sampling`` (``per_round``) has its own task.
    """
    of_split: StageTask
    if split == "sampling":
        own = task.settings.data.sampling != task.run_settings.data.sampling
        of_split = task.clone(QuestionsSampling, round=task.round_number if own else None)
    else:
        of_split = task.clone(SPLITS[split])
    return of_split


def question_sets(task: StageTask) -> dict[str, Questions]:
    """The tasks of all questions of a run, as inputs, questions of single rounds included."""
    config = task.run_settings
    used = [split for split in SPLITS if split != "sft" or config.start == SFT]
    sets = {f"questions-{split}": task.clone(SPLITS[split]) for split in used}
    for number in range(1, config.rounds + 1):
        if config.of_round(number).data.sampling != config.data.sampling:
            of_round = task.clone(QuestionsSampling, round=number)
            sets[f"questions-sampling-{number}"] = of_round
    return sets


TRAINED = ("sft", "sampling")
HELD_OUT = ("validation", "test")
PREFIX = "questions-"
_LOOKED_AT = 10_000  # questions that a check looks at, which takes seconds


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the count of questions, and of dropped overlaps.

    The split is the part of the stage's name after ``questions-``. Raises InputError when an input
    file is unusable, a question id is repeated, or all questions of a split that trains repeat
    held-out questions.
    """
    from pipeline.core.record_io import read_records, write_parquet
    from pipeline.knowledge.corpus.questions.load import Notes

    split = context.stage.removeprefix(PREFIX)
    files: Sequence[QuestionFile] = getattr(context.config.data, split)
    context.progress.start(len(files), "files")
    notes = Notes()
    held = None
    if split in TRAINED:
        outputs = {name: context.inputs[PREFIX + name] / QUESTIONS for name in HELD_OUT}
        held = HeldOut({name: read_records(path, Question) for name, path in outputs.items()})
    without = None if held is None else held.without
    questions = read_split(split, _with_paths(context, files), context.seed, notes, without)
    for line in notes.lines(f"data.{split}", for_training=split in TRAINED):
        print(line)
    context.notes["questions"] = {name: count for name, count in notes.counts.items() if count}
    if held is not None:
        questions = held.without(questions)
        for line in held.lines(split, questions):
            print(line)
        _write_overlaps(context.output / "overlap.json", split, held.dropped)
    written = {"questions": write_parquet(context.output / QUESTIONS, questions, Question)}
    if held is not None:
        written["overlaps"] = sum(map(len, held.dropped.values()))
    return written


def _with_paths(
    context: StageContext, files: Iterable[QuestionFile]
) -> Iterator[tuple[QuestionFile, Path]]:
    for file in files:
        gold = {dataset: str(context.resolve(path)) for dataset, path in file.gold.items()}
        yield file.model_copy(update={"gold": gold}), context.resolve(file.path)
        context.progress.advance()


def read_split(
    split: str,
    files: Iterable[tuple[QuestionFile, Path]],
    seed: int,
    notes: Notes,
    without: Keep | None = None,
) -> list[Question]:
    """The questions of the files of a split, in order; repeated questions are counted in ``notes``.

    A ``limit`` counts the questions in the file's share that ``without`` leaves. The id of a
    question that an earlier file has too ends in its number, as within a file. Raises InputError
    when a file is unusable or comes twice, or two questions have the same id.
    """
    from pipeline.knowledge.corpus.questions.load import load_questions, numbered

    by_id: dict[str, Question] = {}
    read = set[Path]()
    for number, (file, path) in enumerate(files):
        for question in load_questions(
            path,
            file.dataset,
            required=file.filter,
            select=file.select,
            limit=file.limit,
            seed=seed + number,
            for_training=split in TRAINED,
            keep=_kept(file, seed, without),
            gold={dataset: Path(name) for dataset, name in file.gold.items()},
            notes=notes,
        ):
            for name in numbered(question.question_id):
                if (known := by_id.get(name)) is None:
                    break
                if path in read or known.question != question.question:
                    raise InputError.at(
                        path,
                        f"question id {question.question_id} occurs twice in data.{split}; name "
                        "each file once per split, or make the ids distinct",
                    )
            question.question_id = name
            by_id[name] = question
        read.add(path)
    questions = list(by_id.values())
    notes.count_repeats(questions)
    return questions


def _kept(file: QuestionFile, seed: int, without: Keep | None) -> Keep | None:
    """The filter that runs before the limit of a file: its share, then ``without``.

    ``without`` is used only with a limit; without a limit the caller applies it to all files at
    once. The order matters: with one seed, the random choice for training is a part of the random
    choice for the test of the same file, so removing the test questions later left none. Returns
    None if nothing can be left out.
    """
    without = without if file.limit is not None else None
    if file.share == (0, 1):
        return without

    def shared(question: Question) -> bool:
        text = " ".join(tokenize(question.question))
        return file.share[0] <= random.Random(f"{seed}:share:{text}").random() < file.share[1]

    def kept(questions: list[Question]) -> list[Question]:
        found = [question for question in questions if shared(question)]
        return found if without is None else without(found)

    return kept


def question_files(config: Config) -> list[QuestionFile]:
    """The question files of all splits and rounds, and their gold; none comes twice."""
    rounds = (config.of_round(number) for number in range(1, config.rounds + 1))
    named = (
        file
        for settings in (config, *rounds)
        for split in (*TRAINED, *HELD_OUT)
        for one in getattr(settings.data, split)
        for file in (one, *(QuestionFile(dataset=d, path=path) for d, path in one.gold.items()))
    )
    return list({file.path: file for file in named}.values())


def supply_notes(config: Config, questions: Sequence[Question], *, whole: bool) -> Iterator[str]:
    """A sentence when the questions give fewer examples than ``sizes`` and ``test_sizes`` ask for.

    Neither corpus nor graph is looked at. Raises InputError when the questions are the ``whole``
    split and the stage would refuse it.
    """
    from pipeline.knowledge.graph.locate import Locator
    from pipeline.training.sft_data.split import check_supply, count_faults
    from pipeline.training.sft_data.steps import collect_hops, gold_sentence, usable_hops

    settings, words = config.sft_data, config.corpus.chunk_words
    hops = collect_hops(questions, Locator([]), (), words)
    graph = config.graph.source != "none" or settings.triplets == "llm"
    for hop in [] if graph or config.teaches_hyperedges else usable_hops(hops):
        if not config.method.sft_shows_retrieved_kinds:
            gold_sentence(hop)
        else:
            hop.fault = "no triplets (graph.source: none)"
    wanted = Counter(settings.sizes) + Counter(settings.test_sizes)
    available = Counter(check_supply(hops, settings, refuse=whole)) & wanted
    if available != wanted and (faults := count_faults(hops)):
        reason, count = faults.most_common(1)[0]
        yield (
            f"data.sft: {'' if whole else 'the first '}{len(questions):,} questions give about "
            f"{available.total():,} of the {wanted.total():,} examples that sft_data.sizes and "
            f"sft_data.test_sizes ask for; left out most often: {reason} ({count:,})"
        )


class HeldOut:
    """The held-out questions, and the training questions that were left out for repeating one."""

    def __init__(self, sets: Mapping[str, Sequence[Question]]) -> None:
        """``sets`` are the questions of each split of `HELD_OUT`."""
        self._sets = sets
        self.dropped: dict[str, list[Overlap]] = {split: [] for split in HELD_OUT}

    def without(self, questions: list[Question]) -> list[Question]:
        """The questions that repeat no held-out question."""
        from pipeline.knowledge.corpus.overlap import find_overlaps

        repeated = set[str]()
        for split, held in self._sets.items():
            found = find_overlaps(questions, held) if questions and held else []
            self.dropped[split] += found
            repeated.update(overlap.question_id for overlap in found)
        return [question for question in questions if question.question_id not in repeated]

    def lines(self, split: str, questions: Sequence[Question]) -> Iterator[str]:
        """How many were left out; raises InputError when none of the ``questions`` is left."""
        for name, found in self.dropped.items():
            if found:
                yield f"data.{split}: {len(found):,} questions repeat one of data.{name}; left out"
        if any(self.dropped.values()) and not questions:
            raise InputError(
                f"data.{split}: every question repeats one of data.test or data.validation; "
                "use other files, or fewer held-out questions of the same file (select: random)"
            )


def _write_overlaps(path: Path, split: str, dropped: Mapping[str, list[Overlap]]) -> None:
    from pipeline.knowledge.corpus.overlap import THRESHOLD

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


def input_questions(context: StageContext) -> list[Question]:
    """The questions of the input ``questions``."""
    from pipeline.core.record_io import read_records

    return read_records(context.inputs["questions"] / QUESTIONS, Question)


def questions_by_split(inputs: Mapping[str, Path]) -> dict[str, Iterable[Question]]:
    """The questions of the inputs ``questions-<split>``, by split."""
    from pipeline.core.record_io import iterate_records

    return {
        name.removeprefix(PREFIX): iterate_records(directory / QUESTIONS, Question)
        for name, directory in inputs.items()
        if name.startswith(PREFIX)
    }
