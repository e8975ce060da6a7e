"""Read the data of a training stage for its checks, before it is trained on (`training.preflight`).

Input: ``pairs.parquet``, scored trajectories, or encoded supervised examples, and question files.
Output: `DataFacts`. Of a Parquet file only a few columns are read, as Arrow batches, so that a
hundred thousand pairs take seconds. `report` writes ``preflight.json``, and the table into the
stage's log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import Config
from pipeline.core.atomic import write_json
from pipeline.core.input_files import iterate_parquet, parquet_batches
from pipeline.core.records import Question
from pipeline.corpus.overlap import find_overlaps
from pipeline.run.context import StageContext
from pipeline.training.encode import EncodedSft
from pipeline.training.preflight import Check, DataFacts, table

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FILE = "preflight.json"
QUESTIONS = "questions-sampling"
HELD_OUT = ("questions-test", "questions-validation")
_PAIRS = [
    "question_id",
    "prompt_ids",
    "chosen_ids",
    "rejected_ids",
    "chosen_spans",
    "rejected_spans",
]
_TRAJECTORIES = ["question_id", "prompt_ids", "token_ids", "token_spans"]


def pair_facts(file: Path, max_length: int, questions: dict[str, Path] | None = None) -> DataFacts:
    """The facts of a file of pairs; ``questions`` are directories of question stages, by name.

    Raises InputError when a file is unreadable.
    """
    facts = DataFacts("dpo", "pairs", max_length)
    ids: set[str] = set()
    for batch in parquet_batches(file, _PAIRS):
        columns = (_lists(batch[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
        written = (_written(batch[name]) for name in ("chosen_spans", "rejected_spans"))
        for prompt, good, bad, *trained in zip(*columns, *written, strict=True):
            length = len(prompt) + max(len(good), len(bad))
            same = len(good) == len(bad) and bool((good == bad).all())
            digest = _digest(prompt, good, bad)
            facts.add(length, len(good) + len(bad), sum(trained), digest, same)
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


def round_facts(config: Config, data: Path, questions: dict[str, Path]) -> DataFacts:
    """The facts of a round's data with its configuration: pairs, or trajectories for ``grpo``.

    ``data`` is the output of the stage ``pair`` or ``score``.
    """
    length = config.trainer.max_length
    if config.objective == "grpo":
        return trajectory_facts(data / "trajectories.parquet", length, questions)
    return pair_facts(data / "pairs.parquet", length, questions)


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


def report(context: StageContext, facts: DataFacts) -> list[Check]:
    """Write ``preflight.json`` and the table, and note the faults in the manifest."""
    checks = facts.checks()
    write_json(context.output / FILE, as_json(facts, checks))
    print("checks of the training data:")
    for line in table(checks):
        print(line)
    faults = [check.fault for check in checks if check.verdict == "FAULT"]
    verdict = f"{len(faults)} of {len(checks)} are beyond a limit" if faults else "no faults"
    print(f"verdict: {verdict}", flush=True)
    if faults:
        context.notes["preflight"] = faults
    return checks


def as_json(facts: DataFacts, checks: list[Check]) -> dict[str, Any]:
    """The figures and checks as JSON values."""
    return {
        "data": facts.unit,
        "records": facts.records,
        "checks": [asdict(check) for check in checks],
    }


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
