"""Commands on outputs of a policy: ``steep parse``, ``mask``, ``metrics`` and ``import``.

Each reads JSONL or Parquet and writes JSONL; ``-`` is standard input or output. A record needs only
the fields that the command reads, and the others are copied. A malformed record stops the command
with ``file:line: problem`` before anything is written.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.input_records import (
    File,
    Record,
    check_spans,
    parse_view,
    read_input,
)
from pipeline.cli.options import Output, Source
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.methods import DEFAULT_IMPORT, DEFAULT_METHOD
from pipeline.core.record_io import write_jsonl
from pipeline.core.records import GrammarName, HopType, Span

if TYPE_CHECKING:
    from pipeline.grammars.tokenizer import Tokenizer


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
) -> None:
    """Add steps, answer, format_ok and format_error, parsed from the field output."""
    from pipeline import grammars

    parser = grammars.grammar(grammar)
    parsed = []
    for line, record in read_input(source):
        view = parse_view(OutputView, record, source, line)
        check_spans(view.output, view.spans, "spans", source, line)
        parsed.append(record | dataclasses.asdict(parser.parse(view.output, view.spans)))
    write_jsonl(output, parsed)


def metrics(source: Source, output: Output = "-") -> None:
    """Add em, f1 and cem (cover exact match) of answer against answers."""
    from pipeline.core.answer_metrics import cover_exact_match, exact_match, f1

    measured = []
    for line, record in read_input(source):
        view = parse_view(AnswerView, record, source, line)
        scores = {
            "em": exact_match(view.answer, view.answers),
            "f1": f1(view.answer, view.answers),
            "cem": cover_exact_match(view.answer, view.answers),
        }
        measured.append(record | scores)
    write_jsonl(output, measured)


def mask(
    source: Source,
    tokenizer: Annotated[Path, typer.Option(help="directory of the tokenizer")],
    output: Output = "-",
) -> None:
    """Add the text that training would train on, and the text that it would mask.

    The fields trained and masked hold the decoded pieces; mismatch says where the masked tokens
    differ from the observation text, or is null. Exit status 1 when they differ in any record.
    """
    masked = add_masks(source, output, tokenizer=tokenizer)
    differing = sum(record["mismatch"] is not None for record in masked)
    if differing:
        message = f"text and tokens differ in {differing} of {len(masked)} records; see mismatch"
        typer.echo(message, err=True)
        raise typer.Exit(1)


def add_masks(source: File, output: File, *, tokenizer: Path) -> list[Record]:
    """Write the records with ``trained``, ``masked`` and ``mismatch``, and return them.

    The text of a record without ``token_ids`` is tokenized piece by piece, as observation text is.
    """
    lines = list(read_input(source))
    views = [parse_view(TokensView, record, source, line) for line, record in lines]
    for (line, record), view in zip(lines, views, strict=True):
        if not view.token_ids and not view.output:
            problem = "needs token_ids and token_spans, or output"
            raise InputError.at(source_name(source), line, problem)
        check_spans(view.output, view.spans, "spans", source, line)
        if view.token_ids or record.get("token_spans"):
            check_spans(view.token_ids, view.token_spans, "token_spans", source, line, True)
    codec = _open_tokenizer(tokenizer)
    masked = [record | _masked(view, codec) for (_, record), view in zip(lines, views, strict=True)]
    write_jsonl(output, masked)
    return masked


def _open_tokenizer(name: Path) -> Tokenizer:
    from pipeline.core.shipped import find_model

    directory = Path(find_model(name))
    if not directory.is_dir():
        raise InputError.at(
            directory, None, "no such directory; --tokenizer takes the directory of a model"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise InputError.at(directory, None, f"no tokenizer could be read: {cause}") from None
    return tokenizer


def _masked(view: TokensView, tokenizer: Tokenizer) -> Record:
    from pipeline.evaluation.masks import decode_mask, observation_mismatch, tokenize_spans
    from pipeline.grammars import grammar

    spans = view.spans or grammar(view.grammar).spans(view.output)
    ids, token_spans = view.token_ids, view.token_spans
    if not ids:
        ids, token_spans = tokenize_spans(view.output, spans, tokenizer)
    decoded = decode_mask(ids, token_spans, tokenizer)
    problem = observation_mismatch(decoded, view.output, spans) if view.output else None
    return {"trained": decoded.trained, "masked": decoded.masked, "mismatch": problem}


def import_outputs(
    sources: Annotated[list[str], typer.Argument(metavar="FILE...", help="files of outputs")],
    output: Output = "-",
    grammar: Annotated[GrammarName, typer.Option(help="grammar of the outputs")] = DEFAULT_IMPORT,
    hop: Annotated[HopType | None, typer.Option(help="for files that do not say")] = None,
) -> None:
    """Convert outputs of other systems into trajectories for parse, score and pair."""
    from pipeline.rollout.importers import import_outputs as read

    trajectories, skipped = read(sources, grammar_name=grammar, hop=hop)
    write_jsonl(output, trajectories)
    for line in skipped:
        typer.echo(str(line), err=True)
    typer.echo(f"{len(trajectories)} imported, {len(skipped)} left out", err=True)
