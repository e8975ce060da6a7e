"""Stage ``pair``: preference pairs of a round, the funnel, and sections of the card.

Input: the scored trajectories; the trajectories of a question follow each other. Output:
``pairs.parquet``, ``funnel.parquet``, ``funnel.json`` and ``README.md``. One question is in memory
at a time. The file is read once for the funnel and once more for the pairs with their token ids.
Step pairs (ProGraph-R1) take another pass.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import records
from pipeline.core.answer_metrics import exact_match
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError
from pipeline.core.progress import Progress, counted
from pipeline.core.records import PairKind, Trajectory
from pipeline.engine.fingerprint import tool_files
from pipeline.engine.stage import TRAJECTORIES, LightTask, RoundTask, StageTask
from tasks.score import Score

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.pairs.candidates import CandidateTerms
    from pipeline.pairs.questions import PairingOutcome
    from pipeline.pairs.select import Candidate


class Pair(RoundTask, LightTask):
    """Preference pairs of round n, and the pairing outcome of every trajectory."""

    stage = "pair"
    help = "preference pairs of a round"
    version = 2
    reads = ("pairs", "prompt", "grammar", "seed")

    def files(self) -> dict[str, Path | str]:
        return tool_files(self.settings)

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"score": TRAJECTORIES}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {"score": self.clone(Score)}


_SELECTION_COLUMNS = [
    "trajectory_id", "question_id", "dataset", "hop", "sample", "output", "stop", "rewards",
]  # fmt: skip
_PAIR_COLUMNS = [
    *_SELECTION_COLUMNS, "question", "policy", "messages", "tools", "prompt_ids", "token_ids",
    "token_spans",
]  # fmt: skip
_STEP_COLUMNS = [*_PAIR_COLUMNS, "grammar", "spans", "steps", "format_ok"]


def run(context: StageContext) -> dict[str, int]:
    """Fill ``context.output`` with pairs.parquet, funnel.parquet, funnel.json and README.md.

    Raises InputError for trajectories without rewards or with rewards that are not finite, for
    repeated trajectory ids, and when the trajectories of a question do not follow each other.
    """
    from pipeline.core.record_io import write_parquet
    from pipeline.engine.card import CARD
    from pipeline.engine.files.malformed import warn_of_malformed
    from pipeline.methods import method
    from pipeline.pairs.questions import Funnel, PairingOutcome, table
    from pipeline.training.export.directory import card

    config = context.config
    trained = method(config.grammar)
    scored = _ScoredFile(context, trained.candidate_terms)
    context.progress.start(scored.rows_to_read(), "rows read")
    funnel = Funnel()
    outcomes = funnel.counted(scored.outcomes())
    trajectories = write_parquet(context.output / "funnel.parquet", outcomes, PairingOutcome)
    kinds: Counter[PairKind] = Counter()

    def counted() -> Iterator[records.Pair]:
        for pair in itertools.chain(scored.pairs(), scored.step_pairs()):
            kinds[pair.kind] += 1
            yield pair

    types = dict.fromkeys(("chosen_rewards", "rejected_rewards"), trained.terms)
    pairs = write_parquet(context.output / "pairs.parquet", counted(), records.Pair, types)
    counts_of_pairs = {"pairs": pairs}
    if config.pairs.step_margin is not None:
        counts_of_pairs["step_pairs"] = kinds["step"]
    reason = {} if pairs else {"shortage": scored.shortage()}
    if reason:
        context.warn(f"no pairs: {reason['shortage']}")
        warn_of_malformed(context, scored.source)
    write_json(context.output / "funnel.json", {**funnel.counts, **reason})
    text = card(
        "selected-pairs.md.j2", selection=trained.selection, funnel=table(funnel.counts),
        **counts_of_pairs,
    )  # fmt: skip
    write_text(context.output / CARD, text)
    logging.getLogger(__name__).info(
        "pairs: %s; outcomes: %s", counts_of_pairs, funnel.counts["bins"]
    )
    return {**counts_of_pairs, "trajectories": trajectories}


class _ScoredFile:
    """The scored trajectories of a stage; every method reads them question by question."""

    def __init__(
        self,
        context: StageContext,
        terms_of: Callable[[Mapping[str, Any]], CandidateTerms | None],
    ) -> None:
        from pipeline.core.trajectory_file import FILE

        self._context = context
        self._settings = context.config.pairs
        self._terms_of = terms_of
        self.source = context.inputs["score"] / FILE
        self._format = context.format

    def rows_to_read(self) -> int:
        """The rows of all passes over the file: funnel, pairs, and step pairs."""
        import pyarrow.parquet as pq

        passes = 2 + (self._settings.step_margin is not None)
        return passes * int(pq.read_metadata(self.source).num_rows)

    def outcomes(self) -> Iterator[PairingOutcome]:
        """The pairing outcome of each trajectory."""
        from pipeline.pairs.questions import pair_questions

        candidates = (
            (question_id, self._candidates(trajectories))
            for question_id, trajectories in self._questions(_SELECTION_COLUMNS)
        )
        for _, outcomes in pair_questions(candidates, self._settings):
            yield from outcomes

    def pairs(self) -> Iterator[records.Pair]:
        """The selected pairs, in order."""
        from pipeline.pairs.select import select

        for _, trajectories in self._questions(_PAIR_COLUMNS):
            selected, _ = select(self._candidates(trajectories), self._settings)
            by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
            for pair in selected:
                yield self._pair(by_id[pair.chosen.id], by_id[pair.rejected.id], pair.kind)

    def shortage(self) -> str:
        """Why no pair was selected."""
        from pipeline.pairs.shortage import shortage

        columns = [*_SELECTION_COLUMNS, "answer", "answers"]
        return shortage(
            (
                [
                    (candidate, exact_match(trajectory.answer, trajectory.answers) == 1)
                    for trajectory, candidate in zip(
                        trajectories, self._candidates(trajectories), strict=True
                    )
                ]
                for _, trajectories in self._questions(columns, Progress())
            ),
            self._settings,
        )

    def step_pairs(self) -> Iterator[records.Pair]:
        """All step pairs, if configured."""
        from pipeline.pairs.step_pairs import step_pairs

        margin = self._settings.step_margin
        if margin is None:
            return
        for _, trajectories in self._questions(_STEP_COLUMNS):
            for chosen, rejected in step_pairs(trajectories, margin):
                yield self._pair(chosen, rejected, "step")

    def _questions(
        self, columns: Sequence[str], progress: Progress | None = None
    ) -> Iterator[tuple[str, list[Trajectory]]]:
        from pipeline.core.trajectory_file import iterate_trajectories
        from pipeline.pairs.questions import by_question

        rows = iterate_trajectories(self.source, columns)
        trajectories = counted(rows, progress or self._context.progress)
        return by_question(trajectories, lambda item: item.question_id, self.source)

    def _candidates(self, trajectories: Sequence[Trajectory]) -> list[Candidate]:
        return [candidate_of(trajectory, self._terms_of) for trajectory in trajectories]

    def _pair(self, chosen: Trajectory, rejected: Trajectory, kind: PairKind) -> records.Pair:
        from pipeline.pairs.candidates import pair_of

        prompt = self._context.config.prompt.messages(chosen.question)
        number, tools = self._context.round or 0, chosen.tools or self._format.tools
        return pair_of(chosen, rejected, kind, prompt, round=number, tools=tools)


def candidate_of(
    trajectory: Trajectory, terms_of: Callable[[Mapping[str, Any]], CandidateTerms | None]
) -> Candidate:
    """The values that the selection reads; outputs are compared by digest, being long and many.

    Raises InputError when the trajectory's rewards lack the terms of ``terms_of``, or one is not a
    finite number.
    """
    from pipeline.pairs.select import Candidate

    broken = trajectory.stop == "retrieval_error"
    output = hashlib.sha256(trajectory.output.encode("utf-8", "surrogatepass")).hexdigest()
    name = trajectory.trajectory_id
    candidate = Candidate(
        name, trajectory.sample, trajectory.hop, output=output, broken=broken,
        dataset=trajectory.dataset,
    )  # fmt: skip
    if broken:
        return candidate
    try:
        terms = terms_of(trajectory.rewards or {})
    except InputError as error:
        raise InputError(f"trajectory {name}: {error}; score it again") from None
    if terms is None:
        raise InputError(
            f"trajectory {name} has no rewards to pair by; run steep score on it first"
        )
    return replace(candidate, **terms)
