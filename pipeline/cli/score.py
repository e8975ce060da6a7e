"""``steep score``: rewards of the trajectories of a file.

Input: JSONL or Parquet with the fields of `TrajectoryView`, `JudgedTrajectoryView` or
`ProGraphView`. Output: the records with ``rewards``: TeaRAG eq. 5 to 13, HiPRAG eq. 1, ProGraph-R1
eq. 11 to 15, or Search-R1's outcome reward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Output, Source
from pipeline.cli.records import (
    File,
    JudgedTrajectoryView,
    Record,
    TrajectoryView,
    parse_view,
    read_input,
    scorable_trajectory,
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
    file ``verdicts`` as the stage ``judge`` writes it. ProGraph-R1's reward (`ProGraphView`) and
    Search-R1's need neither.
    """
    from pipeline.methods import method

    needs = method(reward).record_needs
    if needs == "verdicts":
        scored = _score_judged(source, reward, similarity, verdicts)
    elif needs == "turns":
        from pipeline.cli.score_prograph import score_records

        scored = score_records(source, reward, similarity)
    else:
        scored = _score_trajectories(source, reward, similarity)
    return write_jsonl(output, scored)


def _score_trajectories(source: File, reward: str, similarity: str) -> Iterator[Record]:
    """Records with rewards that are computed from whole trajectories, with or without evidence."""
    from pipeline.methods import method
    from pipeline.stages.score import with_rewards

    evidence = method(reward).record_needs == "evidence"
    kind = TrajectoryView if evidence else JudgedTrajectoryView
    settings, inputs = _open_inputs(similarity)
    scorer = method(reward).scorer(settings, inputs)
    records = read_input(source)
    while batch := list(islice(records, _BATCH)):
        trajectories = [
            scorable_trajectory(kind, record, source, line, reward) for line, record in batch
        ]
        with_rewards(trajectories, scorer)
        for (_, record), trajectory in zip(batch, trajectories, strict=True):
            yield record | {"rewards": trajectory.rewards}
        del batch, trajectories  # before the next batch is read


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


def _score_judged(
    source: File, reward: str, config: str, verdicts: File | None
) -> Iterator[Record]:
    """Records with HiPRAG's rewards; a configuration replaces the paper's coefficients."""
    from pipeline.rewards.hiprag import PAPER
    from pipeline.rewards.hiprag import score as score_trajectories

    coefficients = PAPER
    if config != _LEXICAL:
        from pipeline.config import load
        from pipeline.methods.hiprag import weights_of

        coefficients = weights_of(load(config).rewards)
    rulings_of = None if verdicts is None else _rulings(verdicts)
    for line, record in read_input(source):
        trajectory = scorable_trajectory(JudgedTrajectoryView, record, source, line, reward)
        if trajectory.stop == "retrieval_error":
            yield record | {"rewards": None}
            continue
        steps = parse_view(JudgedTrajectoryView, record, source, line).steps
        rulings: list[Ruling | None] = [None] * len(trajectory.steps)
        if steps is not None:
            rulings = [step.verdict for step in steps]
        if rulings_of is not None:
            judged = rulings_of.get(str(record.get("trajectory_id")), [])
            rulings = [ruling for _, ruling in sorted(judged)]
        try:
            [terms] = score_trajectories([trajectory], [rulings], coefficients)
        except InputError as error:
            raise InputError.at(source_name(source), line, str(error)) from None
        yield record | {"rewards": terms}


def _rulings(verdicts: File) -> dict[str, list[tuple[int, Ruling]]]:
    """(step, ruling) by trajectory id, the only part of a file of verdicts that is kept.

    Raises InputError when a step has two verdicts.
    """
    from pipeline.core.verdicts import Verdict

    names: dict[str, Ruling] = {"yes": "yes", "no": "no", "unknown": "unknown"}
    rulings: dict[str, list[tuple[int, Ruling]]] = {}
    for verdict in iterate_records(verdicts, Verdict):
        of_trajectory = rulings.setdefault(verdict.id, [])
        if any(step == verdict.step for step, _ in of_trajectory):
            problem = f"two verdicts on step {verdict.step} of trajectory {verdict.id!r}; keep one"
            raise InputError.at(source_name(verdicts), None, problem)
        of_trajectory.append((verdict.step, names[verdict.verdict]))
    return rulings
