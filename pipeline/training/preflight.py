"""Checks of training data: lengths, repetitions, overlap, balance and mask coverage.

Input: ``pairs.parquet``, scored trajectories, or encoded supervised examples, question files, and
the limits below. Output: `DataFacts`, which give one `Check` for each question, with its figures,
its limit and a remedy. Of a Parquet file only a few columns are read, as Arrow batches, so that a
hundred thousand pairs take seconds. Memory grows with the number of distinct lengths, and by one
hash for each record.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.input_files import iterate_parquet, parquet_batches
from pipeline.core.records import Question
from pipeline.corpus.overlap import find_overlaps
from pipeline.training.encode import EncodedSft

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_DIGITS = 3
# Limits: shares of records, of the questions that train (overlap), of the pairs of the rarest kind,
# and of the tokens after the prompts (trained); and the ratio of the median written tokens of the
# sides of pairs.
MAX_OVER_LONG = MAX_IDENTICAL = MAX_DUPLICATES = MAX_OVERLAP = 0.0
MIN_KIND = 0.02
MAX_LENGTH_RATIO = 2.0
MIN_TRAINED = 0.05


@dataclass(frozen=True)
class Check:
    """The outcome of one check. ``value`` and ``limit`` are shares, or a ratio for the lengths.

    ``limit`` is None where a figure is only shown. ``found`` states the figures in words, and
    ``remedy`` the action to take if the limit is passed. Data beyond the limit are faulty. With
    ``hint`` the check only informs: the balance of pairs, for example, follows from the policy.
    """

    name: str
    value: float
    limit: float | None
    passed: bool
    found: str
    remedy: str = ""
    hint: bool = False

    @property
    def verdict(self) -> Literal["ok", "hint", "FAULT"]:
        """The verdict on the data."""
        return "ok" if self.passed else "hint" if self.hint else "FAULT"

    @property
    def fault(self) -> str:
        """The sentence for data beyond the limit."""
        return f"{self.name}: {self.found}; {self.remedy}"

    def as_json(self) -> dict[str, Any]:
        """The check as JSON values."""
        return asdict(self)


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
    content_kinds: tuple[str, ...] = ()  # kinds of pairs about content that there can be
    kinds: Counter[str] = field(default_factory=Counter)
    chosen: Counter[int] = field(default_factory=Counter)  # pairs by written tokens of a side
    rejected: Counter[int] = field(default_factory=Counter)
    questions: int = 0
    overlaps: int | None = None  # None: not compared with held-out questions
    _seen: set[bytes] = field(default_factory=set)

    def add(self, length: int, tokens: int, trained: int, digest: bytes) -> None:
        """Count a record: its longest sequence, tokens after the prompt, and trained tokens."""
        self.records += 1
        self.over_long += length > self.max_length
        self.longest = max(self.longest, length)
        self.tokens += tokens
        self.trained += trained
        self.duplicates += digest in self._seen
        self._seen.add(digest)

    def add_pair(self, kind: str, chosen: int, rejected: int, identical: bool) -> None:
        """Count the facts that only a pair has: its kind and the written tokens of its sides."""
        self.kinds[kind] += 1
        self.chosen[chosen] += 1
        self.rejected[rejected] += 1
        self.identical += identical

    def checks(self) -> list[Check]:
        """The checks that apply to these records; none without records."""
        return list(self._checks()) if self.records else []

    def _checks(self) -> Iterator[Check]:
        block = self.block
        yield self._share(
            "length", self.over_long, MAX_OVER_LONG,
            f"longer than {block}.max_length ({self.max_length:,} tokens); the longest has "
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
        if self.kinds:
            yield self._share(
                "identical sides", self.identical, MAX_IDENTICAL,
                "have the same tokens on both sides", "raise sampling.temperature",
            )  # fmt: skip
            yield self._balance_of_kinds()
            yield self._balance_of_lengths()
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
            "lower retrieval.top_k or sampling.max_context_tokens, so that less of a trajectory is "
            "observation",
        )  # fmt: skip

    def _share(self, name: str, count: int, limit: float | None, what: str, remedy: str) -> Check:
        share = count / self.records
        found = f"{count:,} of {self.records:,} {self.unit} ({share:.1%}) {_are(what)}"
        passed = limit is None or share <= limit
        return Check(name, round(share, _DIGITS), limit, passed, found, remedy)

    def _balance_of_kinds(self) -> Check:
        # Few pairs of kind format mean that the policy keeps the format.
        names = {*self.content_kinds, *self.kinds} - {"format"} or {"margin"}
        rarest = min(names, key=lambda name: (self.kinds[name], name))
        share = self.kinds[rarest] / self.records
        found = ", ".join(f"{number:,} {kind}" for kind, number in self.kinds.most_common())
        return Check(
            "balance of kinds", round(share, _DIGITS), MIN_KIND, share >= MIN_KIND,
            f"{found}; {rarest} is {share:.1%}", _REMEDIES.get(rarest, "sample more questions"),
            hint=True,
        )  # fmt: skip

    def _balance_of_lengths(self) -> Check:
        chosen, rejected = _median(self.chosen), _median(self.rejected)
        ratio = max(chosen, rejected) / max(min(chosen, rejected), 1)
        return Check(
            "balance of lengths", round(ratio, _DIGITS), MAX_LENGTH_RATIO,
            ratio <= MAX_LENGTH_RATIO,
            f"the median chosen side has {chosen:,} written tokens and the median rejected one "
            f"{rejected:,}",
            "training may learn length; lower sampling.max_segment_tokens, or look at `steep view "
            "--kind`",
            hint=True,
        )  # fmt: skip


# Ways to get more pairs of a kind; other causes mostly depend on the policy.
_REMEDIES = {
    "hard": "answers that are partly right are rare among the samples; lower pairs.hard_margin or "
    "pairs.easy_outcome, raise sampling.samples",
    "easy": "raise pairs.easy_outcome, or raise sampling.samples",
    "format": "raise sampling.temperature, or leave it so where the policy keeps the format",
    "margin": "lower pairs.margin, or raise sampling.samples",
    "step": "lower pairs.step_margin",
}


def _are(what: str) -> str:
    return f"are {what}" if what.startswith("longer") else what


def _median(counts: Counter[int]) -> int:
    """The lower median of numbers with their counts."""
    remaining = (counts.total() + 1) // 2
    for number in sorted(counts):
        remaining -= counts[number]
        if remaining <= 0:
            return number
    return 0


def table(checks: Iterable[Check]) -> list[str]:
    """The checks as aligned lines: verdict, name, figures, and the remedy of a fault or hint."""
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<6} {check.name:<32} {check.found}")
        if not check.passed:
            lines.append(f"{'':<6} {'':<32} {check.remedy}")
    return lines


QUESTIONS = "questions-sampling"
HELD_OUT = ("questions-test", "questions-validation")
_PAIRS = [
    "question_id",
    "kind",
    "prompt_ids",
    "chosen_ids",
    "rejected_ids",
    "chosen_spans",
    "rejected_spans",
]
_TRAJECTORIES = ["question_id", "prompt_ids", "token_ids", "token_spans"]


def pair_facts(
    file: Path,
    max_length: int,
    questions: dict[str, Path] | None = None,
    content_kinds: tuple[str, ...] = (),
) -> DataFacts:
    """The facts of a file of pairs; ``questions`` are directories of question stages, by name.

    ``content_kinds`` are kinds of pairs that the method can make (`Method.pair_kinds`).

    Raises InputError when a file is unreadable.
    """
    facts = DataFacts("dpo", "pairs", max_length, content_kinds=content_kinds)
    ids: set[str] = set()
    for batch in parquet_batches(file, _PAIRS):
        prompts, kinds = _lists(batch["prompt_ids"]), batch["kind"].to_pylist()
        chosen, rejected = _lists(batch["chosen_ids"]), _lists(batch["rejected_ids"])
        written = [_written(batch[name]) for name in ("chosen_spans", "rejected_spans")]
        for prompt, kind, good, bad, good_written, bad_written in zip(
            prompts, kinds, chosen, rejected, *written, strict=True
        ):
            length = len(prompt) + max(len(good), len(bad))
            tokens, trained = len(good) + len(bad), good_written + bad_written
            facts.add(length, tokens, trained, _digest(prompt, good, bad))
            same = len(good) == len(bad) and bool((good == bad).all())
            facts.add_pair(kind, good_written, bad_written, same)
        ids.update(batch["question_id"].to_pylist())
    _compare_questions(facts, ids, questions or {})
    return facts


def trajectory_facts(
    file: Path, max_length: int, questions: dict[str, Path] | None = None
) -> DataFacts:
    """The facts of a file of scored trajectories; arguments are as in `pair_facts`."""
    facts = DataFacts("grpo", "trajectories", max_length)
    ids: set[str] = set()
    for batch in parquet_batches(file, _TRAJECTORIES):
        rows = zip(
            _lists(batch["prompt_ids"]),
            _lists(batch["token_ids"]),
            _written(batch["token_spans"]),
            batch["question_id"].to_pylist(),
            strict=True,
        )
        for prompt, tokens, written, question in rows:
            facts.add(len(prompt) + len(tokens), len(tokens), written, _digest(prompt, tokens))
            ids.add(question)
    _compare_questions(facts, ids, questions or {})
    return facts


class SftFacts:
    """The facts of encoded supervised examples, taken while they pass."""

    def __init__(self, max_length: int) -> None:
        self.facts = DataFacts("sft", "examples", max_length)

    def __call__(self, examples: Iterable[EncodedSft]) -> Iterator[EncodedSft]:
        """The examples, counted."""
        for example in examples:
            prompt = next(n for n, label in enumerate(example.labels) if label >= 0)
            digest = hashlib.blake2b(repr(example.input_ids).encode(), digest_size=12).digest()
            tokens = example.length - prompt
            self.facts.add(example.length, tokens, example.trained_tokens, digest)
            yield example


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


def _lists(column: pa.ListArray) -> list[np.ndarray[Any, Any]]:
    """The lists of a column as arrays of integers."""
    import numpy as np

    ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.split(values, ends[:-1]) if len(ends) else []


def _written(column: pa.ListArray) -> list[int]:
    """The number of tokens in the spans that the model wrote, by row."""
    import numpy as np
    import pyarrow.compute as pc

    spans = column.flatten()
    start, end, writer = (spans.field(name) for name in ("start", "end", "writer"))
    sizes = np.where(pc.equal(writer, "model"), pc.subtract(end, start), 0)
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(column)), counts)
    return [int(total) for total in np.bincount(rows, weights=sizes, minlength=len(column))]


def _digest(*parts: np.ndarray[Any, Any]) -> bytes:
    content = hashlib.blake2b(digest_size=12)
    for part in parts:
        content.update(f"{len(part)}:".encode())
        content.update(part.tobytes())
    return content.digest()
