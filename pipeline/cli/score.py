"""``steep score``: rewards of the trajectories of a file.

Input: JSONL or Parquet with the fields of `TrajectoryView`. Output: the records with ``rewards``:
TeaRAG eq. 5 to 13, HiPRAG eq. 1, ProGraph-R1 eq. 11 to 15, or Search-R1's outcome reward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Output, Source
from pipeline.cli.records import (
    File,
    ItemView,
    Record,
    TrajectoryView,
    read_input,
    read_trajectory,
)
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.methods import DEFAULT_METHOD, listed_methods
from pipeline.core.record_io import iterate_records, write_jsonl
from pipeline.core.records import Trajectory

if TYPE_CHECKING:
    from pipeline.config.policy import Rewards
    from pipeline.core.similarity import Similarity
    from pipeline.core.verdicts import Ruling
    from pipeline.methods import ScoreInputs
    from pipeline.rewards.structure import EntitySource
    from pipeline.rollout.turns import Turn

_BATCH = 128  # trajectories per call of the similarity model
_LEXICAL = "lexical"


def score(
    source: Source,
    output: Output = "-",
    reward: Annotated[str, typer.Option(help=f"the method: {listed_methods()}")] = DEFAULT_METHOD,
    similarity: Annotated[
        str, typer.Option(help="lexical, or a configuration with reranker and weights")
    ] = _LEXICAL,
    verdicts: Annotated[
        str | None, typer.Option(help="hiprag: file of verdicts, for steps without one")
    ] = None,
) -> None:
    """Add the rewards to the trajectories of FILE."""
    score_file(source, output, reward=reward, similarity=similarity, verdicts=verdicts)


def score_file(
    source: File,
    output: File,
    *,
    reward: str = DEFAULT_METHOD,
    similarity: str = _LEXICAL,
    verdicts: File | None = None,
) -> int:
    """Add ``rewards`` with every term, null where retrieval failed; returns the number of records.

    ``similarity`` is "lexical" or a configuration, whose reranker and weights are used. TeaRAG's
    reward needs the similarity. HiPRAG's reward takes its verdicts from the steps, or from the
    file ``verdicts`` as the stage ``judge`` writes it. ProGraph-R1's reward and Search-R1's need
    neither.
    """
    from pipeline.methods import method

    needs = method(reward).record_needs
    settings, inputs = _open_inputs(similarity)
    if needs == "verdicts":
        scored = _score_judged(source, reward, settings, verdicts)
    elif needs == "turns":
        scored = _score_turns(source, reward, settings)
    else:
        scored = _score_trajectories(source, reward, settings, inputs)
    return write_jsonl(output, scored)


def _open_inputs(name: str) -> tuple[Rewards, ScoreInputs]:
    """The rewards block and the similarity model: the defaults, or a configuration's."""
    from pipeline.config.policy import Rewards

    if name == _LEXICAL:
        from pipeline.core.similarity import Lexical

        return Rewards(), _SimilarityOnly(Lexical)
    from pipeline.config import load
    from pipeline.config.machine_choices import resolve_dtypes
    from pipeline.stages.resources import open_similarity

    config = resolve_dtypes(load(name)).settings
    reranker = config.rewards.reranker or config.retrieval.reranker
    return config.rewards, _SimilarityOnly(lambda: open_similarity(config, reranker=reranker))


@dataclasses.dataclass(frozen=True)
class _SimilarityOnly:
    """`pipeline.methods.ScoreInputs` of a file: a similarity model, no graph and no policy."""

    open: Callable[[], Similarity]

    def similarity(self) -> Similarity:
        return self.open()

    def entities(self) -> EntitySource:
        raise NotImplementedError

    def state_values(
        self, trajectories: Sequence[Trajectory], continuations: int
    ) -> list[list[float]]:
        raise NotImplementedError


def _score_trajectories(
    source: File, reward: str, settings: Rewards, inputs: ScoreInputs
) -> Iterator[Record]:
    """Records with rewards that are computed from whole trajectories, with or without evidence."""
    from pipeline.methods import method
    from pipeline.stages.score import with_rewards

    evidence = method(reward).record_needs == "evidence"
    scorer = method(reward).scorer(settings, inputs)
    records = read_input(source)
    while batch := list(islice(records, _BATCH)):
        trajectories = []
        for line, record in batch:
            required = ("hop", "evidence") if evidence and record.get("hop") != "single" else ()
            trajectories.append(read_trajectory(record, source, line, reward, required))
        with_rewards(trajectories, scorer)
        for (_, record), trajectory in zip(batch, trajectories, strict=True):
            yield record | {"rewards": trajectory.rewards}
        del batch, trajectories  # before the next batch is read


def _rulings_in_steps(view: TrajectoryView) -> list[Ruling | None]:
    """The verdicts of the record's steps; steps that were parsed have none."""
    return [getattr(step, "verdict", None) for step in view.steps or ()]


def _score_judged(
    source: File, reward: str, settings: Rewards, verdicts: File | None
) -> Iterator[Record]:
    """Records with HiPRAG's rewards."""
    from pipeline.methods.hiprag import weights_of
    from pipeline.rewards.hiprag import score as score_trajectories

    rulings_of = None if verdicts is None else _rulings(verdicts)
    for line, record in read_input(source):
        view = read_trajectory(record, source, line, reward)
        if view.stop == "retrieval_error":
            yield record | {"rewards": None}
            continue
        rulings = _rulings_in_steps(view)
        if rulings_of is not None:
            rulings = [ruling for _, ruling in sorted(rulings_of.get(view.trajectory_id, []))]
        try:
            [terms] = score_trajectories([view], [rulings], weights_of(settings))
        except InputError as error:
            raise InputError.at(source_name(source), line, str(error)) from None
        yield record | {"rewards": terms}


def _rulings(verdicts: File) -> dict[str, list[tuple[int, Ruling]]]:
    """(step, ruling) by trajectory id, the only part of a file of verdicts that is kept.

    Raises InputError when a step has two verdicts.
    """
    from pipeline.core.verdicts import Verdict

    rulings: dict[str, list[tuple[int, Ruling]]] = {}
    for verdict in iterate_records(verdicts, Verdict):
        of_trajectory = rulings.setdefault(verdict.id, [])
        if any(step == verdict.step for step, _ in of_trajectory):
            problem = f"two verdicts on step {verdict.step} of trajectory {verdict.id!r}; keep one"
            raise InputError.at(source_name(verdicts), None, problem)
        of_trajectory.append((verdict.step, verdict.verdict))
    return rulings


def _score_turns(source: File, reward: str, settings: Rewards) -> Iterator[Record]:
    """Records with ProGraph-R1's rewards of each step (eq. 11 to 15)."""
    from pipeline.rewards.prograph import ProGraphWeights, step_rewards
    from pipeline.rewards.structure import RecordedEntities, structure

    weights = ProGraphWeights(settings.prograph.progress, settings.prograph.structure)
    for line, record in read_input(source):
        view = read_trajectory(record, source, line, reward)
        if view.stop == "retrieval_error":
            yield record | {"rewards": None}
            continue
        turns = _turns(view, parsed=record.get("steps") is None)
        values = view.values
        if values is not None and len(values) != len(turns) + 1:
            problem = (
                f"values: {len(values)} for {len(turns)} steps; expected one before each step and "
                "one at the end"
            )
            raise InputError.at(source_name(source), line, problem)
        if values and not math.isfinite(max(values) - min(values)):
            problem = (
                "values: they differ by more than a number can hold; expected estimates near 0 to 1"
            )
            raise InputError.at(source_name(source), line, problem)
        entities = {
            id(item): item.entities
            for turn in turns
            for item in turn.items
            if isinstance(item, ItemView) and item.entities is not None
        }
        terms = structure(view, turns, RecordedEntities(view.entities, entities))
        yield record | {"rewards": step_rewards(view, terms, values, weights)}


def _turns(view: TrajectoryView, *, parsed: bool) -> list[Turn]:
    """The turns by the spans of a parsed output, or by the record's steps."""
    from pipeline.grammars import grammar
    from pipeline.rollout.turns import Turn, turns_of

    if parsed:
        view.spans = view.spans or grammar(view.grammar).spans(view.output)
        return turns_of(view)
    return [
        Turn(f"{step.think}\n{step.query or ''}", tuple(step.context or ()), (0, 0))
        for step in view.steps or ()
    ]
