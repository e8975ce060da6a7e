"""``steep pair``: preference pairs of the scored trajectories of a file, or the stage ``pair``.

Input: JSONL or Parquet with the fields of `ScoredView`. Output: one pair per line (TeaRAG eq. 14), with
the fields of `Pair` and both totals.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import options, runs
from pipeline.cli import pair_preview as preview
from pipeline.cli.input_records import File, check_spans, parse_view, read_input
from pipeline.core.atomic import check_distinct, json_text, text_output
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import HopType, Message, Pair, Span, Stop
from pipeline.pairs.candidates import pair_of

if TYPE_CHECKING:
    from pipeline.config.policy import Pairs
    from pipeline.pairs.select import Candidate, CandidatePair


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
    """The fields that ``pair`` reads; the order in the file replaces a missing ``sample``.

    Texts and tokens that a trajectory lacks are missing in its pairs too.
    """

    trajectory_id: str
    question_id: str
    hop: HopType
    rewards: RewardTerms | None = None
    dataset: str = ""
    sample: int | None = None
    output: str | None = None
    stop: Stop = "answer"
    question: str = ""
    policy: str = ""
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    token_spans: list[Span] = dataclasses.field(default_factory=list)


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
            help="configuration (stage: embedded); with FILE its thresholds replace the paper's, and its "
            "system message begins the prompts",
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
            "pairs.* and of weights of rewards; the counts are shown beside the run's own, and --output "
            "and --funnel work",
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

    ``funnel`` is a file for the pairing outcome of every trajectory. ``config`` names a configuration
    whose ``pairs`` thresholds replace the paper's, and whose system message begins the prompts.
    """
    from pipeline.pairs.select import PAPER

    check_distinct(output, funnel)
    thresholds, system = PAPER, ""
    if config is not None:
        from pipeline.config import load

        settings = load(config)
        thresholds, system = settings.pairs, settings.prompt.system
    with _Spool() as spool, ExitStack() as stack:
        _read_trajectories(source, spool)
        write = None if funnel is None else stack.enter_context(text_output(funnel))
        return write_jsonl(output, _pairs(source, spool, thresholds, system, write))


@dataclasses.dataclass(frozen=True)
class _Scored:
    """A trajectory of the file: what the selection reads, its texts, and all its reward terms."""

    candidate: Candidate
    view: ScoredView
    rewards: dict[str, Any]


class _Spool:
    """Trajectories in a temporary file, grouped by question.

    Those of a question need not be adjacent in the input, and standard input can be read only once.
    Memory holds one question, and eight bytes for every trajectory.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._places: dict[str, array[int]] = {}

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, trajectory: _Scored) -> None:
        """Write a trajectory. Raises StoreError when the file cannot be written."""
        with _named_as_full():
            place = self._file.tell()
            pickle.dump(trajectory, self._file, pickle.HIGHEST_PROTOCOL)
        self._places.setdefault(trajectory.view.question_id, array("q")).append(place)

    def questions(self) -> Iterator[tuple[str, list[_Scored]]]:
        """(question id, its trajectories), in the order of the input."""
        with _named_as_full():
            self._file.flush()
        for question_id, places in self._places.items():
            yield question_id, [self._read(place) for place in places]

    def _read(self, place: int) -> _Scored:
        self._file.seek(place)
        trajectory: _Scored = pickle.load(self._file)
        return trajectory


@contextmanager
def _named_as_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the temporary file of the trajectories cannot be written: {error.strerror}; free disk space, "
            "or set TMPDIR to a directory with more"
        ) from None


def _pairs(
    source: File,
    spool: _Spool,
    thresholds: Pairs,
    system: str,
    write: Callable[[str], None] | None,
) -> Iterator[dict[str, Any]]:
    """The pairs of all questions; ``write`` gets the pairing outcomes as JSON lines."""
    from pipeline.pairs.questions import pair_questions
    from pipeline.pairs.select import counted_total

    by_id: dict[str, _Scored] = {}  # the trajectories of the question that is being paired

    def candidates() -> Iterator[tuple[str, list[Candidate]]]:
        for question_id, trajectories in spool.questions():
            by_id.clear()
            by_id.update((scored.candidate.id, scored) for scored in trajectories)
            yield (
                question_id,
                [
                    dataclasses.replace(scored.candidate, sample=place)
                    if scored.view.sample is None
                    else scored.candidate
                    for place, scored in enumerate(trajectories)
                ],
            )

    questions = pair_questions(candidates(), thresholds)
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
            yield as_json(_whole(pair, by_id, system)) | {
                "chosen_total": counted_total(pair.chosen, thresholds),
                "rejected_total": counted_total(pair.rejected, thresholds),
            }


def _whole(pair: CandidatePair, by_id: dict[str, _Scored], system: str) -> Pair:
    """A pair with the texts, tokens and reward terms of its trajectories; the round is unknown."""
    chosen, rejected = (by_id[side.id] for side in (pair.chosen, pair.rejected))
    first, second = chosen.view, rejected.view
    prompt = [Message("system", system)] if system else []
    if first.question:
        prompt.append(Message("user", first.question))
    return pair_of(first, second, pair.kind, prompt, (chosen.rewards, rejected.rewards), round=0)


def _read_trajectories(source: File, spool: _Spool) -> None:
    """Fill the spool; raises InputError for malformed records and repeated trajectory ids."""
    from pipeline.core.content_cache import digest
    from pipeline.methods import candidate_terms
    from pipeline.pairs.select import Candidate

    seen: set[bytes] = set()
    for line, record in read_input(source):
        rewards = record.get("rewards")
        single = isinstance(rewards, dict) and "answer" in rewards
        view = parse_view(SingleRewardView if single else ScoredView, record, source, line)
        broken = view.stop == "retrieval_error"
        if view.rewards is None and not broken:
            problem = "rewards: missing; run steep score first"
            raise InputError.at(source_name(source), line, problem)
        check_spans(view.token_ids, view.token_spans, "token_spans", source, line)
        terms = dataclasses.asdict(view.rewards) if view.rewards and not broken else {}
        candidate = Candidate(
            id=view.trajectory_id,
            sample=view.sample or 0,
            hop=view.hop,
            output=view.output,
            broken=broken,
            dataset=view.dataset,
            **(candidate_terms(terms, record.get("grammar")) or {}),
        )
        if not math.isfinite(candidate.total):
            problem = "rewards: their sum is larger than a number can hold"
            raise InputError.at(source_name(source), line, problem)
        if (key := digest(view.trajectory_id)) in seen:
            problem = f"trajectory_id: {view.trajectory_id!r} occurs twice"
            raise InputError.at(source_name(source), line, problem)
        seen.add(key)
        spool.add(_Scored(candidate, view, rewards or {}))
