"""``steep pair``: preference pairs of the scored trajectories of a file, or the stage ``pair``.

Input: JSONL or Parquet with the fields of `ScoredView`. Output: one line per pair, with the ids of
both trajectories (TeaRAG eq. 14).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import options, runs
from pipeline.cli import pair_preview as preview
from pipeline.cli.input_records import File, parse_view, read_input
from pipeline.core.atomic import check_distinct, json_text, text_output
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import HopType, Stop

if TYPE_CHECKING:
    from pipeline.cli.candidate_store import CandidateStore
    from pipeline.config.policy import Pairs


@dataclasses.dataclass
class RewardTerms:
    """The terms of TeaRAG's reward that pairs are selected by."""

    format: float
    outcome: float
    process: float


@dataclasses.dataclass
class SingleReward:
    """The terms of a reward that is one number (HiPRAG); ``n`` counts the judged steps."""

    format: float
    answer: float
    total: float
    n: int | None = None


@dataclasses.dataclass
class ScoredView:
    """The fields that ``pair`` reads; the order in the file replaces a missing ``sample``."""

    trajectory_id: str
    question_id: str
    hop: HopType
    rewards: RewardTerms | None = None
    dataset: str = ""
    sample: int | None = None
    output: str | None = None
    stop: Stop = "answer"


@dataclasses.dataclass
class SingleRewardView(ScoredView):
    """The fields that ``pair`` reads of a trajectory with one reward."""

    rewards: SingleReward | None = None  # type: ignore[assignment]


def pair(
    context: typer.Context,
    source: options.OptionalSource = None,
    output: options.FileOutput = "-",
    funnel: Annotated[
        str | None,
        typer.Option(
            help="file for the pairing outcome of every trajectory",
            rich_help_panel=options.FILE_PANEL,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="configuration (stage: embedded); with FILE its thresholds replace the paper's",
        ),
    ] = None,
    set: options.StageSetOption = None,
    data: options.StageDataOption = None,
    round: options.StageRoundOption = None,
    workers: options.StageWorkersOption = None,
    force: options.StageForceOption = False,
    no_check: options.StageNoCheckOption = False,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="directory of a run whose scored trajectories of --round are paired with the --set of "
            "pairs.*; the counts are shown beside the run's own, and --output and --funnel work",
            rich_help_panel=options.FROM_PANEL,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print JSON", rich_help_panel=options.FROM_PANEL),
    ] = False,
) -> None:
    """Select preference pairs among the scored trajectories of FILE; without FILE run stage pair.

    The stage selects the pairs of a round, with everything that it needs. With --from nothing runs.
    """
    if from_run is not None:
        options.refuse_options(context, ("source", "workers", "force"), options.WITH_FROM)
        given = context.get_parameter_source("output")
        preview.show(
            preview.preview(
                from_run,
                1 if round is None else round,
                config=config,
                overrides=set or (),
                data=None if data is None else str(data.absolute()),
                output=output if given and given.name == "COMMANDLINE" else None,
                funnel=funnel,
            ),
            as_json=as_json,
        )
        return
    options.refuse_options(context, ("as_json",), options.WITHOUT_FROM)
    if source is None:
        options.refuse_options(context, ("output", "funnel"), options.WITHOUT_FILE)
        config = config or options.DEFAULT_CONFIGURATION
        runs.run("pair", config, set, data, round, workers, force, no_check)
        return
    stage_only = [name for name in options.STAGE_OPTIONS if name != "config"]
    options.refuse_options(context, stage_only, options.WITH_FILE)
    pair_file(source, output, funnel=funnel, config=config)


def pair_file(
    source: File, output: File, *, funnel: File | None = None, config: str | None = None
) -> int:
    """Write the preference pairs of all questions; returns how many.

    ``funnel`` is a file for the pairing outcome of every trajectory. ``config`` names a
    configuration whose ``pairs`` thresholds replace the paper's.
    """
    from pipeline.cli.candidate_store import candidate_store
    from pipeline.pairs.select import PAPER

    check_distinct(output, funnel)
    thresholds = PAPER
    if config is not None:
        from pipeline.config import load

        thresholds = load(config).pairs
    with candidate_store() as store, ExitStack() as stack:
        _read_candidates(source, store)
        write = None if funnel is None else stack.enter_context(text_output(funnel))
        return write_jsonl(output, _pairs(source, store, thresholds, write))


def _pairs(
    source: File, store: CandidateStore, thresholds: Pairs, write: Callable[[str], None] | None
) -> Iterator[dict[str, object]]:
    """The pairs of all questions; ``write`` gets the pairing outcomes as JSON lines."""
    from pipeline.pairs.questions import pair_questions
    from pipeline.pairs.select import counted_total

    questions = pair_questions(store.questions(), thresholds)
    while True:
        try:
            question = next(questions, None)
        except InputError as error:
            raise InputError.at(source_name(source), None, str(error)) from None
        if question is None:
            return
        if write is not None:
            for outcome in question.outcomes:
                write(json_text(as_json(outcome)) + "\n")
        for pair in question.pairs:
            yield {
                "question_id": question.question_id,
                "chosen": pair.chosen.id,
                "rejected": pair.rejected.id,
                "kind": pair.kind,
                "chosen_total": counted_total(pair.chosen, thresholds),
                "rejected_total": counted_total(pair.rejected, thresholds),
            }


def _read_candidates(source: File, store: CandidateStore) -> None:
    """Fill the store; raises InputError for malformed records and repeated trajectory ids."""
    from pipeline.cli.candidate_store import digest
    from pipeline.methods import candidate_terms
    from pipeline.pairs.select import Candidate

    for line, record in read_input(source):
        rewards = record.get("rewards")
        single = isinstance(rewards, dict) and "answer" in rewards
        view = parse_view(SingleRewardView if single else ScoredView, record, source, line)
        broken = view.stop == "retrieval_error"
        if view.rewards is None and not broken:
            problem = "rewards: missing; run steep score first"
            raise InputError.at(source_name(source), line, problem)
        terms = dataclasses.asdict(view.rewards) if view.rewards and not broken else {}
        candidate = Candidate(
            id=view.trajectory_id,
            sample=view.sample or 0,
            hop=view.hop,
            output=None if view.output is None else digest(view.output),
            broken=broken,
            dataset=view.dataset,
            **(candidate_terms(terms, record.get("grammar")) or {}),
        )
        if not math.isfinite(candidate.total):
            problem = "rewards: their sum is larger than a number can hold"
            raise InputError.at(source_name(source), line, problem)
        if not store.add(view.question_id, candidate, ordered=view.sample is None):
            problem = f"trajectory_id: {view.trajectory_id!r} occurs twice"
            raise InputError.at(source_name(source), line, problem)
