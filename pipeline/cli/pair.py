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
from pipeline.cli.records import File, Record, check_spans, parse_view, read_each
from pipeline.core.atomic import json_text, text_output
from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError, Place
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import HopType, Pair, PairKind, Span, Stop
from pipeline.rollout.conversations.steps import tool_format

if TYPE_CHECKING:
    from pipeline.config.policy import Pairs, Prompt
    from pipeline.pairs.select import Candidate


@dataclasses.dataclass
class ScoredView:
    """The fields that ``pair`` reads; without ``sample`` the order in the file counts.

    Texts and tokens that a trajectory lacks are missing in its pairs too.
    """

    trajectory_id: str
    question_id: str
    hop: HopType
    rewards: dict[str, Any] = dataclasses.field(default_factory=dict)
    grammar: str | None = None
    dataset: str = ""
    sample: int | None = None
    output: str | None = None
    messages: str | list[dict[str, Any]] = ""
    tools: str | list[dict[str, Any]] | None = None
    stop: Stop = "answer"
    question: str = ""
    answer: str | None = None
    answers: list[str] = dataclasses.field(default_factory=list)
    policy: str = ""
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    token_spans: list[Span] = dataclasses.field(default_factory=list)


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
            help="instead of FILE: directory of a run; its scored trajectories of --round are "
            "paired with the --set of pairs.* and of reward weights, and the counts are shown "
            "beside the run's own",
        ),
    ] = None,
    round: Annotated[int, typer.Option(help="with --from: the round")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="with --from: print JSON")] = False,
) -> None:
    """Select preference pairs among scored trajectories of FILE, or of a run (--from).

    Pairs of FILE have the paper's thresholds and no system message. With --config or --set they
    have the thresholds and the system message of that configuration.
    """
    if from_run is not None:
        refuse_options(context, ("source",), "with --from; remove one of them")
        given = context.get_parameter_source("output")
        target = output if given and given.name == "COMMANDLINE" else None
        preview.show(preview.preview(from_run, round, chosen, target, funnel), as_json=as_json)
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
    replace the paper's, and prompts are its own.
    """
    from pipeline.config.policy import Prompt
    from pipeline.core.answer_metrics import exact_match
    from pipeline.pairs.select import PAPER
    from pipeline.pairs.shortage import shortage

    thresholds, prompt = PAPER, Prompt()
    if config is not None:
        settings = config.load()
        thresholds, prompt = settings.pairs, settings.prompt
    questions = _read_trajectories(source)
    with ExitStack() as stack:
        write = None if funnel is None else stack.enter_context(text_output(funnel))
        count = write_jsonl(output, _pairs(source, questions, thresholds, prompt, write))
    if not count:
        rated = (
            [(_candidate(view, 0), exact_match(view.answer, view.answers) == 1) for view in views]
            for views in map(_unpacked, questions.values())
        )
        typer.echo(f"no pairs: {shortage(rated, thresholds)}", err=True)
    return count


# The trajectories of a question need not be adjacent in a file, so all are held, each compressed.
_Questions = dict[str, list[bytes]]


def _read_trajectories(source: File) -> _Questions:
    """The trajectories by question.

    Raises InputError for malformed records, repeated ids, and two questions or prompts of one
    ``question_id``, because both sides of a pair need the same.
    """
    from pipeline.core.answer_metrics import normalize

    held: _Questions = {}
    seen: set[str] = set()
    asked: dict[tuple[str, str], bytes] = {}

    def scored(record: Record) -> ScoredView:
        view = parse_view(ScoredView, record)
        if view.trajectory_id in seen:
            raise InputError(f"trajectory_id: {view.trajectory_id!r} occurs twice")
        check_spans(view.token_ids, view.token_spans, "token_spans")
        _ = _candidate(view, 0)
        prompt = ",".join(map(str, view.prompt_ids))
        for field, text in (("question", normalize(view.question)), ("prompt_ids", prompt)):
            key, value = (view.question_id, field), digest(text)
            if text and asked.setdefault(key, value) != value:
                raise InputError(
                    f"{field}: differs from an earlier trajectory of question_id "
                    f"{view.question_id!r}; the sides of a pair share it, so change the ids"
                )
        return view

    for _, view in read_each(source, scored):
        seen.add(view.trajectory_id)
        packed = zlib.compress(pickle.dumps(view, pickle.HIGHEST_PROTOCOL), 1)
        held.setdefault(view.question_id, []).append(packed)
    return held


def _unpacked(packed: list[bytes]) -> list[ScoredView]:
    return [pickle.loads(zlib.decompress(one)) for one in packed]


def _candidate(view: ScoredView, place: int) -> Candidate:
    """The values for the selection; ``place`` is the place among the trajectories of a question."""
    from pipeline.methods import candidate_terms
    from pipeline.pairs.select import Candidate

    broken = view.stop == "retrieval_error"
    terms = {} if broken else candidate_terms(view.rewards, view.grammar)
    if terms is None:
        raise InputError("rewards: missing; run steep score first")
    candidate = Candidate(
        id=view.trajectory_id,
        sample=place if view.sample is None else view.sample,
        hop=view.hop,
        output=view.output,
        broken=broken,
        dataset=view.dataset,
        **terms,
    )
    if not math.isfinite(candidate.total):
        raise InputError("rewards: their sum is larger than a number can hold")
    return candidate


def _pairs(
    source: File,
    held: _Questions,
    thresholds: Pairs,
    prompt: Prompt,
    write: Callable[[str], None] | None,
) -> Iterator[dict[str, Any]]:
    """The pairs of all questions; ``write`` gets the pairing outcomes as JSON lines."""
    from pipeline.pairs.questions import pair_questions
    from pipeline.pairs.select import counted_total

    by_id: dict[str, ScoredView] = {}  # the trajectories of the question that is being paired

    def candidates() -> Iterator[tuple[str, list[Candidate]]]:
        for question_id, packed in held.items():
            views = _unpacked(packed)
            by_id.clear()
            by_id.update((view.trajectory_id, view) for view in views)
            yield question_id, [_candidate(view, place) for place, view in enumerate(views)]

    with Place(source):
        for pairs, outcomes in pair_questions(candidates(), thresholds):
            if write is not None:
                for outcome in outcomes:
                    write(json_text(as_json(outcome)) + "\n")
            for pair in pairs:
                chosen, rejected = by_id[pair.chosen.id], by_id[pair.rejected.id]
                yield as_json(_whole(chosen, rejected, pair.kind, prompt)) | {
                    "chosen_total": counted_total(pair.chosen, thresholds),
                    "rejected_total": counted_total(pair.rejected, thresholds),
                }


def _whole(chosen: ScoredView, rejected: ScoredView, kind: PairKind, prompt: Prompt) -> Pair:
    """A pair with the texts, tokens and reward terms of its trajectories; the round is unknown."""
    messages = prompt.messages(chosen.question) if chosen.question else []
    tools = chosen.tools
    if not tools and chosen.messages:
        tools = tool_format(chosen.grammar or DEFAULT_METHOD).declared
    text = tools if isinstance(tools, str | None) else json_text(tools)
    from pipeline.pairs.candidates import pair_of  # imports numpy

    return pair_of(chosen, rejected, kind, messages, round=0, tools=text)
