"""Commands on outputs: ``steep parse``, ``mask``, ``metrics``, ``failures`` and ``import``.

Each reads JSONL or Parquet and writes JSONL; ``-`` is standard input or output. A record needs only
the fields that the command reads, and the others are copied. A malformed record stops the command
with ``file:line: problem`` before anything is written.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli.conversations import ConversationView, conversation_mask, parsed_messages
from pipeline.cli.options import Chosen, Output, Source, with_configuration
from pipeline.cli.printing import console, print_json
from pipeline.cli.records import (
    Record,
    check_spans,
    extended,
    parse_view,
    read_each,
    read_trajectory,
)
from pipeline.core.answer_metrics import CoverMatch, answer_measures
from pipeline.core.errors import InputError
from pipeline.core.formats import CALL_TOOLS, DEFAULT_FORMAT, FormatName
from pipeline.core.input_files import parse_json
from pipeline.core.methods import DEFAULT_IMPORT, DEFAULT_METHOD
from pipeline.core.record_io import iterate_records, parse_record, write_jsonl
from pipeline.core.records import (
    GrammarName,
    HopType,
    Question,
    Span,
    TokenCounts,
    Trajectory,
)
from pipeline.core.text import visible
from pipeline.evaluation.failures import Diagnosis, FailureMode, diagnose
from pipeline.knowledge.corpus.raw_records import encodable

if TYPE_CHECKING:
    from pipeline.llm.tokenizer import Tokenizer

_REASONS_SHOWN = 100  # lines left out that `steep import` names; the rest are counted


_Tools = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Python file that declares tools, as the setting tools"),
]
_SearchTools = Annotated[
    list[str] | None,
    typer.Option(
        "--search-tool",
        metavar="NAME[=ARGUMENT]",
        help="another name of the method's search, and of its query; several times for several",
    ),
]
_Answer = Annotated[
    Literal["marker", "whole"],
    typer.Option(help="whole: the last message is the answer, also without Answer:"),
]


@dataclasses.dataclass
class OutputView:
    """The fields that ``parse`` reads."""

    output: str
    spans: list[Span] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class TokensView:
    """The fields that ``mask`` reads: ids with their spans, or text."""

    output: str = ""
    grammar: GrammarName = DEFAULT_METHOD
    spans: list[Span] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    token_spans: list[Span] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class AnswerView:
    """The fields that ``metrics`` reads."""

    answers: list[str]
    answer: str | None = None


def parse(
    source: Source,
    output: Output = "-",
    grammar: Annotated[str, typer.Option(help="grammar of the outputs")] = DEFAULT_METHOD,
    format: Annotated[
        FormatName,
        typer.Option(help="tags: parse output; tools: parse messages with tool calls"),
    ] = DEFAULT_FORMAT,
    tools: _Tools = None,
    search_tool: _SearchTools = None,
    answer: _Answer = "marker",
) -> None:
    """Add steps, answer, format_ok and format_error, parsed from output or messages."""
    from pipeline.rollout import grammars
    from pipeline.rollout.conversations.steps import load_tools

    calls_tools = format in CALL_TOOLS
    if not calls_tools and (tools is not None or search_tool or answer == "whole"):
        raise InputError(
            "--tools, --search-tool and --answer are for conversations; add --format tools"
        )
    load_tools(tools)
    parser = grammars.grammar(grammar)

    def parsed(view: OutputView) -> Record:
        check_spans(view.output, view.spans, "spans")
        return dataclasses.asdict(parser.parse(view.output, view.spans))

    def of_messages(view: ConversationView) -> Record:
        return parsed_messages(view, grammar, search_tool or (), whole=answer == "whole")

    messages = extended(source, ConversationView, of_messages)
    write_jsonl(output, messages if calls_tools else extended(source, OutputView, parsed))


@with_configuration
def metrics(
    chosen: Chosen,
    source: Source,
    output: Output = "-",
    table: Annotated[
        bool, typer.Option("--table", help="averages by policy and data set instead, as evaluate")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="with --table: print rows as in metrics.json")
    ] = False,
    cem: Annotated[
        CoverMatch,
        typer.Option(help="cover exact match, as the setting evaluation.cem"),
    ] = "words",
    judge: Annotated[
        bool,
        typer.Option(
            "--judge",
            help="add judged too (yes, no, unknown), by answer_judge of --config or by "
            "its closed world, and print the agreement",
        ),
    ] = False,
) -> None:
    """Add em, f1 and cem (cover exact match) of answer against answers."""
    if judge:
        if table:
            raise InputError("--table cannot be used with --judge; remove one of them")
        from pipeline.cli.judge_answers import judge_answers

        judge_answers(chosen, source, output, cem)
        return
    if chosen.given or chosen.overrides or chosen.data:
        raise InputError(
            "a configuration is read with --judge alone; add it, or remove the options"
        )
    if table:
        from pipeline.cli.evaluate import metrics_table

        rows = _averages(source, cem)
        if output != "-":
            write_jsonl(output, rows)
        else:
            print_json(rows) if as_json else console().print(metrics_table(rows))
        return

    def measured(view: AnswerView) -> Record:
        return answer_measures(view.answer, view.answers, cem)

    write_jsonl(output, extended(source, AnswerView, measured))


def _averages(source: str, cem: CoverMatch) -> list[Record]:
    """The rows of metrics.json for the trajectories of a file.

    Several of one question count as their mean: intervals are over questions.
    """
    from pipeline.evaluation.metrics import Outcome, measure, metrics_rows
    from pipeline.evaluation.sampled import means

    def read(record: Record) -> Trajectory:
        view, tokens = read_trajectory(record), record.get("tokens")
        if isinstance(tokens, dict):  # of a sampled trajectory; other systems write a number
            view.tokens = parse_record(TokenCounts, tokens)
        return view

    outcomes: dict[str, dict[tuple[str, str | int], list[Outcome]]] = {}
    for number, (record, view) in enumerate(read_each(source, read)):
        of_policy = outcomes.setdefault(str(record.get("policy") or ""), {})
        question = view.dataset, view.question_id or number
        of_policy.setdefault(question, []).append(measure(view, None, cem=cem))
    each = (
        metrics_rows(
            policy, "", [dataclasses.replace(of[0], sampled=means(of)) for of in measured.values()],
            {}, seed=0,
        )
        for policy, measured in outcomes.items()
    )  # fmt: skip
    return [row for rows in each for row in rows]


def mask(
    source: Source,
    tokenizer: Annotated[Path, typer.Option(help="directory of the tokenizer")],
    output: Output = "-",
    chat_template: Annotated[
        Path | None, typer.Option(help="file with the chat template, instead of the tokenizer's")
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="enable_thinking of the chat template"),
    ] = None,
) -> None:
    """Add the text that training would train on, and the text that it would mask.

    The fields trained and masked hold the decoded pieces; mismatch says where tokens and text
    differ, or is null. A record with messages and tools gets prompt_ids, token_ids and token_spans
    too, and its mismatch says where they differ from the chat template's rendering, or is empty.
    Exit status 1 when there is a mismatch in any record.
    """
    # The text of a record without token_ids is tokenized piece by piece, as observation text is.
    codec, vocabulary = _open_tokenizer(tokenizer, chat_template)
    from pipeline.rollout.conversations.chat_template import ChatTemplate
    from pipeline.rollout.conversations.steps import tool_format

    @cache
    def template_of(tools: str) -> ChatTemplate:
        return ChatTemplate(codec, parse_json(tools, "tools"), thinking=thinking)

    differing = 0

    def fields_of(record: Record) -> Record:
        view, calls = parse_view(TokensView, record), record.get("format") in CALL_TOOLS
        # The output of an imported conversation is text for people, which no model reads.
        own = view.token_ids if calls else view.output
        if record.get("messages") is not None and not own:
            tools = record.get("tools") or (tool_format(view.grammar).declared if calls else None)
            found = parse_view(ConversationView, record | {"tools": tools})
            return conversation_mask(found, codec, template_of)
        _check_tokens(view, vocabulary)
        return _masked(view, codec)

    def masked() -> Iterator[Record]:
        nonlocal differing
        for record, fields in read_each(source, fields_of):
            differing += bool(fields["mismatch"])
            yield record | fields

    records = write_jsonl(output, masked())
    if differing:
        message = f"text and tokens differ in {differing} of {records} records; see mismatch"
        typer.echo(message, err=True)
        raise typer.Exit(1)


def _check_tokens(view: TokensView, vocabulary: int) -> None:
    """Raise InputError unless the record has text or ids, covered by its spans."""
    if not view.token_ids and not view.output:
        raise InputError("needs token_ids and token_spans, or output, or messages")
    check_spans(view.output, view.spans, "spans")
    if not encodable(view.output):
        raise InputError("output: half of a surrogate pair has no tokens; replace it")
    if view.token_ids or view.token_spans:
        check_spans(view.token_ids, view.token_spans, "token_spans", True)
    for position, token_id in enumerate(view.token_ids):
        if not 0 <= token_id < vocabulary:
            raise InputError(
                f"token_ids.{position}: {token_id} is not an id of the tokenizer, which has "
                f"0 to {vocabulary - 1}"
            )


def _open_tokenizer(name: Path, chat_template: Path | None) -> tuple[Tokenizer, int]:
    """The tokenizer of a model's directory, and the number of its ids."""
    from pipeline.core.model_files import find_model

    directory = Path(find_model(name))
    if not directory.is_dir():
        raise InputError.at(
            directory, "no such directory; --tokenizer takes the directory of a model"
        )
    from pipeline.llm.tokenizer import model_tokenizer

    if chat_template is not None and not chat_template.is_file():
        raise InputError.at(chat_template, "no such file; --chat-template takes a template")
    tokenizer: Any = model_tokenizer(
        directory, None if chat_template is None else str(chat_template)
    )
    return tokenizer, max(tokenizer.get_vocab().values(), default=-1) + 1


def _masked(view: TokensView, tokenizer: Tokenizer) -> Record:
    from pipeline.llm.tokens import decode, decode_mask, mismatch, tokenize_spans
    from pipeline.rollout.grammars import grammar
    from pipeline.training.checks import same_text

    spans = view.spans or grammar(view.grammar).spans(view.output)
    ids, token_spans = view.token_ids, view.token_spans
    if not ids:
        ids, token_spans = tokenize_spans(view.output, spans, tokenizer)
    decoded = decode_mask(ids, token_spans, tokenizer)
    problem = None
    if view.output:
        problem = mismatch(tokenizer, view.output, spans, ids, token_spans)
    if problem and not view.token_ids:  # Qwen's tokenizers normalize the user's text to NFC
        parts = (decode(tokenizer, ids[start:end]) for start, end, _ in token_spans)
        problem = None if same_text("".join(parts), view.output) else problem
    return {"trained": decoded.trained, "masked": decoded.masked, "mismatch": problem}


def import_outputs(
    sources: Annotated[list[str], typer.Argument(metavar="FILE...", help="files of outputs")],
    output: Output = "-",
    grammar: Annotated[GrammarName, typer.Option(help="grammar of the outputs")] = DEFAULT_IMPORT,
    hop: Annotated[HopType | None, typer.Option(help="for files that do not say")] = None,
    recorded: Annotated[bool, typer.Option(help="files of steep record, and of rewards")] = False,
    tools: _Tools = None,
    search_tool: _SearchTools = None,
    answer: _Answer = "marker",
) -> None:
    """Convert outputs of other systems, or logs of agents, into trajectories."""
    from pipeline.rollout.conversations.steps import load_tools
    from pipeline.rollout.importers import iterate_outputs
    from pipeline.rollout.recorded import recorded_trajectories

    load_tools(tools)
    if recorded:
        trajectories, counts = recorded_trajectories(sources, grammar)
        write_jsonl(output, trajectories)
        typer.echo(str(counts), err=True)
        return

    skipped = 0
    reasons: list[str] = []
    notes = Counter[str]()

    def imported() -> Iterator[Trajectory]:
        nonlocal skipped
        for item in iterate_outputs(
            sources,
            grammar_name=grammar,
            hop=hop,
            search_tools=search_tool or (),
            whole_answer=answer == "whole",
            notes=notes,
        ):
            if isinstance(item, Trajectory):
                yield item
                continue
            skipped += 1
            if len(reasons) < _REASONS_SHOWN:
                reasons.append(str(item))

    count = write_jsonl(output, imported())
    for reason in reasons:
        typer.echo(visible(reason), err=True)
    if skipped > len(reasons):
        typer.echo(f"... and {skipped - len(reasons)} more lines", err=True)
    left = "".join(f"; {name}: {number}" for name, number in notes.items() if number)
    typer.echo(f"{count} imported, {skipped} left out{left}", err=True)


def failures(
    source: Source,
    output: Output = "-",
    questions: Annotated[
        Path | None,
        typer.Option(
            help="questions of the trajectories, as the stages questions-<split> write them"
        ),
    ] = None,
) -> None:
    """Add why trajectories fail: format, stopping, decomposition, retrieval, reading.

    Their questions (questions.parquet) add MuSiQue's decompositions and the number of hops.
    """
    asked = () if questions is None else iterate_records(questions, Question)
    known = {question.question_id: question for question in asked}
    counts = Counter[FailureMode]()

    def diagnosis_of(record: Record) -> Diagnosis:
        view = read_trajectory(record, required=("question", "hop"))
        if questions is not None and view.question_id not in known:
            raise InputError(f"question_id: no question {view.question_id!r} in {questions}")
        return diagnose(view, known.get(view.question_id))

    def diagnosed() -> Iterator[Record]:
        for record, diagnosis in read_each(source, diagnosis_of):
            counts[diagnosis.failure_mode] += 1
            yield record | {
                "failure_mode": diagnosis.failure_mode,
                "failed_hop": diagnosis.hop,
                "hops": diagnosis.hops,
            }

    write_jsonl(output, diagnosed())
    told = (f"{counts[mode]} {mode.value}" for mode in FailureMode if counts[mode])
    typer.echo(", ".join(told), err=True)
