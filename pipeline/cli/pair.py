"""``steep pair``: preference pairs of the scored trajectories of a file, or of a run.

Input: JSONL or Parquet with the fields of `ScoredView`. Output: one pair per line (TeaRAG eq. 14),
with the fields of `Pair` and both totals.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import pair_preview as preview
from pipeline.cli.options import (
    Chosen,
    OptionalSource,
    Output,
    refuse_options,
    with_configuration,
)
from pipeline.cli.records import File, check_spans, parse_view, read_input
from pipeline.core.atomic import check_distinct, json_text, text_output
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import HopType, Message, Pair, Span, Stop
from pipeline.pairs.candidates import pair_of

if TYPE_CHECKING:
    from pipeline.config.policy import Pairs
    from pipeline.pairs.select import Candidate, CandidatePair


@dataclasses.dataclass
class RewardTerms:
    """The terms of TeaRAG's reward that the selection of pairs uses."""

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
    """The fields that ``pair`` reads; without ``sample`` the order in the file counts.

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


@with_configuration
def pair(
    context: typer.Context,
    chosen: Chosen,
    source: OptionalSource = None,
    output: Output = "-",
    funnel: Annotated[
        str | None, typer.Option(help="file for the pairing outcome of every trajectory")
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="in place of FILE: directory of a run whose scored trajectories of --round are "
            "paired with the --set of pairs.* and of weights of rewards; the counts stand beside "
            "the run's own",
        ),
    ] = None,
    round: Annotated[int, typer.Option(help="with --from: the round")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="with --from: print JSON")] = False,
) -> None:
    """Select preference pairs among scored trajectories of FILE, or of a run (--from).

    With FILE a configuration replaces the paper's thresholds, and its system message begins the
    prompts.
    """
    if from_run is not None:
        refuse_options(context, ("source",), "with --from; remove one of them")
        given = context.get_parameter_source("output")
        result = preview.preview(
            from_run,
            round,
            config=chosen.config if chosen.given else None,
            overrides=chosen.overrides,
            data=chosen.root,
            output=output if given and given.name == "COMMANDLINE" else None,
            funnel=funnel,
        )
        preview.show(result, as_json=as_json)
        return
    refuse_options(context, ("as_json", "round"), "without --from; name the directory of a run")
    if source is None:
        raise InputError(
            "steep pair: name a FILE (- is standard input) or --from RUN; steep run pair runs the "
            "stage"
        )
    if chosen.overrides and not chosen.given:
        raise InputError("steep pair: --set with FILE needs --config or --variant; add one")
    pair_file(source, output, funnel=funnel, config=chosen if chosen.given else None)


def pair_file(
    source: File, output: File, *, funnel: File | None = None, config: Chosen | None = None
) -> int:
    """Write the preference pairs of all questions; returns how many.

    ``funnel`` is a file for the pairing outcome of every trajectory. The thresholds of ``config``
    replace the paper's, and its system message begins the prompts.
    """
    from pipeline.pairs.select import PAPER

    check_distinct(output, funnel)
    thresholds, system = PAPER, ""
    if config is not None:
        settings = config.load()
        thresholds, system = settings.pairs, settings.prompt.system
    questions = _read_trajectories(source)
    with ExitStack() as stack:
        write = None if funnel is None else stack.enter_context(text_output(funnel))
        return write_jsonl(output, _pairs(source, questions, thresholds, system, write))


@dataclasses.dataclass(frozen=True)
class _Scored:
    """A trajectory of the file: the values for the selection, its texts, and its reward terms."""

    candidate: Candidate
    view: ScoredView
    rewards: dict[str, Any]


# The trajectories of a question need not be adjacent in a file, so all are held, each compressed.
_Questions = dict[str, list[bytes]]


def _pairs(
    source: File,
    held: _Questions,
    thresholds: Pairs,
    system: str,
    write: Callable[[str], None] | None,
) -> Iterator[dict[str, Any]]:
    """The pairs of all questions; ``write`` gets the pairing outcomes as JSON lines."""
    from pipeline.pairs.questions import pair_questions
    from pipeline.pairs.select import counted_total

    by_id: dict[str, _Scored] = {}  # the trajectories of the question that is being paired

    def candidates() -> Iterator[tuple[str, list[Candidate]]]:
        for question_id, packed in held.items():
            trajectories: list[_Scored] = [pickle.loads(zlib.decompress(one)) for one in packed]
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


def _read_trajectories(source: File) -> _Questions:
    """The trajectories by question; raises InputError for malformed records and repeated ids."""
    from pipeline.core.content_cache import digest
    from pipeline.methods import candidate_terms
    from pipeline.pairs.select import Candidate

    held: _Questions = {}
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
        packed = pickle.dumps(_Scored(candidate, view, rewards or {}), pickle.HIGHEST_PROTOCOL)
        held.setdefault(view.question_id, []).append(zlib.compress(packed, 1))
    return held
