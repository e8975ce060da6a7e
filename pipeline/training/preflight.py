"""Checks of training data: lengths, repetitions, overlap and mask coverage.

Input: ``pairs.parquet``, scored trajectories, or encoded supervised examples, question files, and
the limits below. Output: `DataFacts`, which give one `Check` for each question, with its figures,
its limit and a remedy. Of a Parquet file only a few columns are read. Memory grows by one hash for
each record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.core.records import Question
from pipeline.core.row_files import iterate_parquet
from pipeline.knowledge.corpus.overlap import find_overlaps
from pipeline.training.encode import EncodedSft

_DIGITS = 3
# Limits: shares of records, of the questions that train (overlap), and of the tokens after the
# prompts (trained).
MAX_OVER_LONG = MAX_IDENTICAL = MAX_DUPLICATES = MAX_OVERLAP = 0.0
MIN_TRAINED = 0.05


@dataclass(frozen=True)
class Check:
    """The outcome of one check; ``value`` and ``limit`` are shares.

    ``limit`` is None where a figure is only shown. ``found`` states the figures in words, and
    ``remedy`` the action to take if the limit is passed.
    """

    name: str
    value: float
    limit: float | None
    passed: bool
    found: str
    remedy: str

    @property
    def fault(self) -> str:
        """The sentence for data beyond the limit."""
        return f"{self.name}: {self.found}; {self.remedy}"


@dataclass
class DataFacts:
    """Running facts about the records of a training stage.

    ``block`` is the trainer's block (sft, dpo or grpo), ``unit`` names the records in the plural.
    """

    block: str
    unit: str
    max_length: int
    records: int = 0
    over_long: int = 0
    longest: int = 0
    identical: int = 0
    duplicates: int = 0
    tokens: int = 0
    trained: int = 0
    questions: int = 0
    overlaps: int | None = None  # None: not compared with held-out questions
    _seen: set[bytes] = field(default_factory=set)

    def add(
        self, length: int, tokens: int, trained: int, ids: list[list[int]], identical: bool = False
    ) -> None:
        """Count a record: its longest sequence, tokens after the prompt, and trained tokens.

        ``ids`` are all token ids of the record. ``identical`` says whether the sides of a pair have
        the same tokens.
        """
        digest = hashlib.blake2b(repr(ids).encode(), digest_size=12).digest()
        self.records += 1
        self.over_long += length > self.max_length
        self.longest = max(self.longest, length)
        self.tokens += tokens
        self.trained += trained
        self.duplicates += digest in self._seen
        self._seen.add(digest)
        self.identical += identical

    def noted(self, examples: Iterable[EncodedSft]) -> Iterator[EncodedSft]:
        """Supervised examples, counted while they pass."""
        for example in examples:
            prompt = next(n for n, label in enumerate(example.labels) if label >= 0)
            ids = [example.input_ids]
            self.add(example.length, example.length - prompt, example.trained_tokens, ids)
            yield example

    def checks(self) -> list[Check]:
        """The checks that apply to these records; none without records."""
        return list(self._checks()) if self.records else []

    def _checks(self) -> Iterator[Check]:
        block = self.block
        yield self._share(
            "length", self.over_long, MAX_OVER_LONG,
            f"are longer than {block}.max_length ({self.max_length:,} tokens); the longest has "
            f"{self.longest:,}",
            f"raise {block}.max_length, or lower sampling.max_total_tokens",
        )  # fmt: skip
        # Samples of a question may be equal, so repeated trajectories have no limit.
        yield self._share(
            "duplicates", self.duplicates,
            None if self.unit == "trajectories" else MAX_DUPLICATES, "repeat another one",
            "each counts twice in the loss; remove repeated questions, or sample with a higher "
            "temperature",
        )  # fmt: skip
        if self.unit == "pairs":
            yield self._share(
                "identical sides", self.identical, MAX_IDENTICAL,
                "have the same tokens on both sides", "raise sampling.temperature",
            )  # fmt: skip
        if self.overlaps is not None:
            share = self.overlaps / max(self.questions, 1)
            yield Check(
                "overlap with held-out questions", round(share, _DIGITS), MAX_OVERLAP,
                share <= MAX_OVERLAP,
                f"{self.overlaps:,} of {self.questions:,} questions repeat one of test or "
                "validation",
                "run the stage questions-sampling again, which drops them",
            )  # fmt: skip
        share = self.trained / max(self.tokens, 1)
        yield Check(
            "mask coverage", round(share, _DIGITS), MIN_TRAINED, share >= MIN_TRAINED,
            f"{self.trained:,} of {self.tokens:,} tokens after the prompts are trained "
            f"({share:.1%})",
            "lower retrieval.top_k or sampling.max_context_tokens for shorter observations",
        )  # fmt: skip

    def _share(self, name: str, count: int, limit: float | None, what: str, remedy: str) -> Check:
        share = count / self.records
        found = f"{count:,} of {self.records:,} {self.unit} ({share:.1%}) {what}"
        passed = limit is None or share <= limit
        return Check(name, round(share, _DIGITS), limit, passed, found, remedy)


def table(checks: Iterable[Check]) -> list[str]:
    """The checks as aligned lines: verdict, name, figures, and the remedy of a fault."""
    lines = []
    for check in checks:
        lines.append(f"{'ok' if check.passed else 'FAULT':<6} {check.name:<32} {check.found}")
        if not check.passed:
            lines.append(f"{'':<6} {'':<32} {check.remedy}")
    return lines


QUESTIONS = "questions-sampling"
HELD_OUT = ("questions-test", "questions-validation")
# What a round trains on, and the sides of each record, with columns of ids and of spans.
_UNITS = {"dpo": "pairs", "grpo": "trajectories"}
_SIDES = {"dpo": ("chosen", "rejected"), "grpo": ("token",)}


def recorded_facts(
    file: Path,
    block: Literal["dpo", "grpo"],
    max_length: int,
    questions: dict[str, Path] | None = None,
) -> DataFacts:
    """The facts of a file of pairs (``dpo``) or of scored trajectories (``grpo``).

    ``questions`` are directories of question stages, by name. Raises InputError when a file is
    unreadable.
    """
    facts = DataFacts(block, _UNITS[block], max_length)
    ids_of, spans_of = ([f"{side}_{part}" for side in _SIDES[block]] for part in ("ids", "spans"))
    questions_seen: set[str] = set()
    for row in iterate_parquet(file, ["question_id", "prompt_ids", *ids_of, *spans_of]):
        prompt, *sides = (row[name] or [] for name in ("prompt_ids", *ids_of))
        spans = [span for name in spans_of for span in row[name] or ()]
        trained = sum(one["end"] - one["start"] for one in spans if one["writer"] == "model")
        lengths = [len(side) for side in sides]
        identical = block == "dpo" and sides[0] == sides[1]
        facts.add(len(prompt) + max(lengths), sum(lengths), trained, [prompt, *sides], identical)
        questions_seen.add(row["question_id"])
    _compare_questions(facts, questions_seen, questions or {})
    return facts


def _compare_questions(facts: DataFacts, ids: set[str], questions: dict[str, Path]) -> None:
    """Count the questions that repeat a held-out one, if both files exist."""
    held_out = [questions[name] for name in HELD_OUT if name in questions]
    if QUESTIONS not in questions or not held_out:
        return
    trained = [
        question for question in _questions(questions[QUESTIONS]) if question.question_id in ids
    ]
    held = [question for directory in held_out for question in _questions(directory)]
    facts.questions = len(trained)
    facts.overlaps = len(find_overlaps(trained, held)) if trained and held else 0


def _questions(directory: Path) -> Iterator[Question]:
    """The questions of a split, without their evidence."""
    rows = iterate_parquet(directory / "questions.parquet", ["question_id", "question"])
    for row in rows:
        yield Question(row["question_id"], "", row["question"], [], "multi")
