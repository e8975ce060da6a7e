"""``steep score``: rewards of the trajectories of a file.

Input: JSONL or Parquet with the fields of `TrajectoryView`. Output: the records with ``rewards``:
TeaRAG eq. 5 to 13, HiPRAG eq. 1, ProGraph-R1 eq. 11 to 15, or Search-R1's outcome reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pipeline.cli.options import Output, Source
from pipeline.cli.records import (
    File,
    ItemView,
    Record,
    TrajectoryView,
    read_each,
    read_trajectory,
)
from pipeline.core.errors import InputError
from pipeline.core.methods import DEFAULT_METHOD, listed_methods
from pipeline.core.record_io import write_jsonl

if TYPE_CHECKING:
    from pipeline.config.policy import Rewards
    from pipeline.core.answer_metrics import CoverMatch
    from pipeline.rollout.turns import Turn

_BATCH = 128  # trajectories per call of the similarity model
_LEXICAL = "lexical"
# The reward terms of a trajectory; the flag says that its steps were parsed from its output.
TermsOf: TypeAlias = Callable[[TrajectoryView, bool], Mapping[str, Any]]


def score(
    source: Source,
    output: Output = "-",
    reward: Annotated[str, typer.Option(help=f"the method: {listed_methods()}")] = DEFAULT_METHOD,
    similarity: Annotated[
        str, typer.Option(help="lexical, or a configuration with reranker and weights")
    ] = _LEXICAL,
) -> None:
    """Add the rewards to the trajectories of FILE, null where retrieval failed.

    TeaRAG's reward needs the similarity, and HiPRAG's reward the verdicts in the steps. Other
    rewards need neither.
    """
    from pipeline.methods import method

    needs = method(reward).record_needs
    settings, inputs = _open_inputs(similarity)
    if needs == "verdicts":
        scored = _score_each(source, reward, _judged_terms(settings, inputs.cem))
    elif needs == "turns":
        scored = _score_each(source, reward, _turn_terms(settings))
    else:
        scored = _score_trajectories(source, reward, settings, inputs)
    write_jsonl(output, scored)


def _open_inputs(name: str) -> tuple[Rewards, Any]:
    """The rewards block and the similarity model: the defaults, or a configuration's.

    The model is the only one of `ScoreInputs` that the records of a file need.
    """
    from pipeline.config.evaluation import Evaluation
    from pipeline.config.policy import Rewards

    if name == _LEXICAL:
        from pipeline.core.similarity import lexical

        return Rewards(), SimpleNamespace(similarity=lambda: lexical, cem=Evaluation().cem)
    from pipeline.config import load
    from pipeline.config.machine_choices import resolve_dtypes
    from pipeline.knowledge.retrieval.rerank import open_reranker, reranker_similarity

    config = resolve_dtypes(load(name)).settings
    reranker = config.rewards.reranker or config.retrieval.reranker
    return config.rewards, SimpleNamespace(
        similarity=lambda: reranker_similarity(
            open_reranker(reranker, config.index.embedder, config.cache_dir)
        ),
        cem=config.evaluation.cem,
    )


def _score_trajectories(
    source: File, reward: str, settings: Rewards, inputs: Any
) -> Iterator[Record]:
    """Records with rewards that are computed from whole trajectories, with or without evidence."""
    from pipeline.methods import method
    from tasks.score import with_rewards

    evidence = method(reward).record_needs == "evidence"
    scorer = method(reward).scorer(settings, inputs)

    def parsed(record: Record) -> TrajectoryView:
        free = record.get("hop") in ("single", "unknown")
        return read_trajectory(record, reward, ("hop", "evidence") if evidence and not free else ())

    records = read_each(source, parsed)
    while batch := list(islice(records, _BATCH)):
        with_rewards([trajectory for _, trajectory in batch], scorer)
        for record, trajectory in batch:
            yield record | {"rewards": trajectory.rewards}
        del batch  # before the next one is read


def _score_each(source: File, reward: str, terms_of: TermsOf) -> Iterator[Record]:
    """Records with the terms of one trajectory at a time; errors name file and line."""

    def terms(record: Record) -> Mapping[str, Any] | None:
        view = read_trajectory(record, reward)
        parsed = record.get("steps") is None
        return None if view.stop == "retrieval_error" else terms_of(view, parsed)

    for record, of_record in read_each(source, terms):
        yield record | {"rewards": of_record}


def _judged_terms(settings: Rewards, cem: CoverMatch) -> TermsOf:
    """HiPRAG's rewards."""
    from pipeline.methods.hiprag.reward import score as score_trajectories

    def terms_of(view: TrajectoryView, parsed: bool) -> Mapping[str, Any]:
        # Steps that were parsed have no verdict.
        rulings = [getattr(step, "verdict", None) for step in view.steps or ()]
        [terms] = score_trajectories([view], [rulings], settings.hiprag, cem)
        return terms

    return terms_of


def _turn_terms(settings: Rewards) -> TermsOf:
    """ProGraph-R1's rewards of each step (eq. 11 to 15)."""
    from pipeline.methods.prograph.reward import step_rewards
    from pipeline.methods.prograph.structure import RecordedEntities, structure

    def terms_of(view: TrajectoryView, parsed: bool) -> Mapping[str, Any]:
        turns, values = _turns(view, parsed=parsed), view.values
        if values is not None and len(values) != len(turns) + 1:
            raise InputError(
                f"values: {len(values)} for {len(turns)} steps; expected one before each step and "
                "one at the end"
            )
        if values and not math.isfinite(max(values) - min(values)):
            raise InputError(
                "values: they differ by more than a number can hold; expected estimates near 0 to 1"
            )
        entities = {
            id(item): item.entities
            for turn in turns
            for item in turn.items
            if isinstance(item, ItemView) and item.entities is not None
        }
        terms = structure(view, turns, RecordedEntities(view.entities, entities))
        return step_rewards(view, terms, values, settings.prograph)

    return terms_of


def _turns(view: TrajectoryView, *, parsed: bool) -> list[Turn]:
    """The turns by the spans of a parsed output, or by the record's steps."""
    from pipeline.rollout.grammars import grammar
    from pipeline.rollout.turns import Turn, turns_of

    if parsed:
        view.spans = view.spans or grammar(view.grammar).spans(view.output)
        return turns_of(view)
    return [
        Turn(f"{step.think}\n{step.query or ''}", tuple(step.context or ()), (0, 0))
        for step in view.steps or ()
    ]
