"""The training data of the stages ``sft`` and ``train``, encoded once before training starts.

Input: ``sft-data`` (SftExample), ``pair`` (Pair) or ``score`` (Trajectory), read a few hundred
records at a time. Output, in the stage's checkpoint directory: ``training.arrow`` and for ``sft``
``heldout.arrow`` (`pipeline.training.encoded_file`), and ``training_data.json`` with counts and the
policies that sampled the data. The training processes share these files and read nothing else.
`report` checks the data before it is trained on and writes ``preflight.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pipeline.core.atomic import write_json
from pipeline.core.errors import TrainingError
from pipeline.core.input_files import read_json
from pipeline.core.model_files import model_hash
from pipeline.core.progress import Progress, counted
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Pair, SftExample, Trajectory
from pipeline.engine.context import StageContext
from pipeline.training.advantages import (
    EncodedTrajectory,
    encode_trajectories,
    standardized_rewards,
)
from pipeline.training.encode import (
    Distinct,
    EncodedPair,
    EncodedSft,
    WithinLength,
    encode_pairs,
    encode_sft,
)
from pipeline.training.encoded_file import EncodedCounts, write_encoded
from pipeline.training.lineage import check_base, read_lineage
from pipeline.training.lora import load_tokenizer, locate_base, vocabulary_size
from pipeline.training.preflight import (
    DataFacts,
    table,
)

R = TypeVar("R")
S = TypeVar("S", Pair, Trajectory)
TRAINING, HELDOUT = "training.arrow", "heldout.arrow"
PREFLIGHT = "preflight.json"
_FACTS = "training_data.json"
_BATCH = 256  # records in memory


@dataclass(frozen=True)
class TrainingData:
    """Counts of the encoded data, and the policies that sampled it (empty for ``sft``).

    ``base`` is the directory of the base model.
    """

    counts: dict[str, int]
    base: str
    policies: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, checkpoint_dir: Path) -> TrainingData:
        """Read the file that `write` left in ``checkpoint_dir``."""
        return cls(**read_json(checkpoint_dir / _FACTS))

    def write(self, checkpoint_dir: Path) -> None:
        """Write it for `read`, and print it to the stage's log."""
        print("encoded: " + ", ".join(f"{value:,} {name}" for name, value in self.counts.items()))
        write_json(checkpoint_dir / _FACTS, asdict(self))


def encode_sft_data(context: StageContext) -> None:
    """Encode the examples of ``sft-data``.

    Raises TrainingError for empty data, masks that disagree with their text, and sequences that are
    too long.
    """
    config, settings = context.config, context.config.sft
    base = locate_base(config.model.base)
    tokenizer, vocabulary = load_tokenizer(base, config.model), vocabulary_size(base)

    def encoded(name: str) -> Iterator[EncodedSft]:
        path = context.inputs["sft-data"] / name
        context.progress.start(None, "encoded records")
        examples = counted(iterate_records(path, SftExample), context.progress)
        for first, batch in _batches(examples):
            yield from encode_sft(tokenizer, batch, vocabulary, first, config.model.thinking)

    short = WithinLength(settings.max_length, settings.over_long, "sft")
    target = context.checkpoint_dir / TRAINING
    facts = DataFacts("sft", "examples", settings.max_length)
    counts = write_encoded(target, EncodedSft, short(facts.noted(encoded("train.parquet"))))
    if not counts.records:
        raise TrainingError(
            "sft-data holds no training examples; raise sft_data.sizes, or name files with "
            "decomposed questions under data.sft"
        )
    held = DataFacts("sft", "held-out examples", settings.max_length)
    noted = held.noted(encoded("test.parquet"))
    short_enough = (example for example in noted if example.length <= settings.max_length)
    write_encoded(context.checkpoint_dir / HELDOUT, EncodedSft, short_enough)
    if held.over_long:
        print(
            f"{held.over_long:,} of {held.records:,} held-out examples are longer than "
            "sft.max_length and left out of the held-out loss"
        )
    report(context, facts)
    _keep(context, base, counts, short, {"examples": counts.records})


def encode_pair_data(context: StageContext) -> None:
    """Encode the pairs of round ``context.round``; with loss "sft" their chosen sides alone.

    Raises TrainingError for missing pairs, ids that the base model lacks, masks that disagree with
    their text, identical sides, records that are too long, and an adapter over another base.
    """
    config, settings, number = context.config, context.config.dpo, context.round or 1
    base = _checked_base(context)
    tokenizer, vocabulary = load_tokenizer(base, config.model), vocabulary_size(base)
    source = _Source(context.progress)
    records = source.noted(iterate_records(context.inputs["pair"] / "pairs.parquet", Pair))
    encoded = (
        pair
        for first, batch in _batches(records)
        for pair in encode_pairs(tokenizer, batch, vocabulary, first)
    )
    distinct = Distinct(settings.over_long)
    short = WithinLength(settings.max_length, settings.over_long, "dpo")
    target = context.checkpoint_dir / TRAINING
    if settings.loss == "sft":
        chosen = (pair.chosen_example() for pair in distinct(encoded))
        counts = write_encoded(target, EncodedSft, short(chosen))
    else:
        counts = write_encoded(target, EncodedPair, short(distinct(encoded)))
    if not source.records:
        funnel = context.inputs["pair"] / "funnel.json"
        reason = read_json(funnel).get("shortage") if funnel.is_file() else None
        raise TrainingError(
            f"round {number} has no preference pairs; "
            + (
                reason
                or "raise sampling.samples or the number of sampling questions, raise "
                "sampling.temperature, or relax the thresholds of pairs"
            )
            + " (see funnel.json of the pair stage)"
        )
    left_out = source.records - counts.records - distinct.dropped - short.dropped
    if not counts.records:
        raise TrainingError(
            f"round {number}: none of {source.records} pairs can be trained: {distinct.dropped} "
            f"have identical sides (raise sampling.temperature), and in {left_out} a control token "
            "malforms the chosen trajectory (set pairs.terms to outcome-format)"
        )
    own = {"pairs": counts.records, "identical": distinct.dropped}
    own |= {"control_tokens": left_out} if left_out else {}
    _keep(context, base, counts, short, own, source.policies)


def encode_trajectory_data(context: StageContext) -> None:
    """Encode the scored trajectories of round ``context.round``.

    Raises TrainingError when no question has trajectories with different rewards, for trajectories
    that are inconsistent or too long, and for an adapter over another base.
    """
    config, settings, number = context.config, context.config.grpo, context.round or 1
    assert settings is not None
    path = context.inputs["score"] / "trajectories.parquet"
    base = _checked_base(context)
    tokenizer, vocabulary = load_tokenizer(base, config.model), vocabulary_size(base)
    source = _Source(context.progress)
    advantages = standardized_rewards(source.noted(iterate_records(path, Trajectory)), settings.per)
    encoded = encode_trajectories(
        tokenizer, iterate_records(path, Trajectory), advantages, vocabulary
    )
    short = WithinLength(settings.max_length, settings.over_long, "grpo")
    target = context.checkpoint_dir / TRAINING
    counts = write_encoded(target, EncodedTrajectory, short(encoded))
    if not counts.records:
        raise TrainingError(
            f"round {number}: the {source.records} trajectories have equal rewards within every "
            "question, so there is nothing to learn; raise sampling.samples, sampling.temperature "
            "or the number of sampling questions"
        )
    own = {"paths": counts.records, "left_out": source.records - counts.records - short.dropped}
    _keep(context, base, counts, short, own, source.policies)


def _keep(
    context: StageContext,
    base: Path,
    counts: EncodedCounts,
    short: WithinLength,
    own: dict[str, int],
    policies: Iterable[str] = (),
) -> None:
    of_file = {"tokens": counts.tokens, "trained_tokens": counts.trained_tokens}
    data = TrainingData({**own, "over_long": short.dropped, **of_file}, str(base), sorted(policies))
    data.write(context.checkpoint_dir)


class _Source:
    """The number of records that were read, and the policies that sampled them."""

    def __init__(self, progress: Progress) -> None:
        self.records = 0
        self.progress = progress
        self.policies: set[str] = set()

    def noted(self, records: Iterable[S]) -> Iterator[S]:
        """The records, counted while they are read."""
        self.progress.start(None, "encoded records")
        for record in counted(records, self.progress):
            self.records += 1
            self.policies.add(record.policy)
            yield record


def _batches(records: Iterable[R]) -> Iterator[tuple[int, list[R]]]:
    """Lists of records, each with the number of its first record, from 1."""
    remaining, first = iter(records), 1
    while batch := list(islice(remaining, _BATCH)):
        yield first, batch
        first += len(batch)


def _checked_base(context: StageContext) -> Path:
    """The base model's directory. Raises TrainingError when policy n - 1 has another base."""
    base = locate_base(context.config.model.base)
    check_base(read_lineage(context.inputs["policy"]), model_hash(base))
    return base


def report(context: StageContext, facts: DataFacts) -> None:
    """Write ``preflight.json`` and the table, and note the faults in the manifest."""
    checks = facts.checks()
    figures = [asdict(check) for check in checks]
    about = {"data": facts.unit, "records": facts.records, "checks": figures}
    write_json(context.output / PREFLIGHT, about)
    print("checks of the training data:")
    for line in table(checks):
        print(line)
    faults = [check.fault for check in checks if not check.passed]
    verdict = f"{len(faults)} of {len(checks)} are beyond a limit" if faults else "no faults"
    print(f"verdict: {verdict}", flush=True)
    if faults:
        context.notes["preflight"] = faults
