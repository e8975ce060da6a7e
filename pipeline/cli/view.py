"""``steep view``: pairs or trajectories in the terminal, with the training mask in color."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from pipeline.cli.options import Chosen, refuse_options, with_configuration
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import iterate_parquet, read_jsonl
from pipeline.core.records import HopType, PairKind, Stop
from pipeline.core.text import one_line

if TYPE_CHECKING:
    from pipeline.evaluation.selection import Selection

Stage = Literal["pair", "sample", "score", "evaluate-policy"]
_FILES = ("pairs.parquet", "trajectories.parquet")


@with_configuration
def view(
    context: typer.Context,
    chosen: Chosen,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="JSONL or Parquet file of pairs or trajectories, or a stage's directory; "
            "without it the records of --stage",
            show_default=False,
        ),
    ] = None,
    stage: Annotated[
        Stage, typer.Option(help="without FILE: the stage whose records are shown")
    ] = "pair",
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="question or trajectory, or the beginning of its id; repeatable"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"pairs of a kind: {', '.join(get_args(PairKind))}; repeatable"),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="of a data set; repeatable")] = None,
    hop: Annotated[HopType | None, typer.Option(help="of single- or multi-hop questions")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help=f"trajectories that ended with {', '.join(get_args(Stop))}; repeatable"),
    ] = None,
    contains: Annotated[
        str, typer.Option(metavar="TEXT", help="with a text in question or output, in any case")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="number of records to show")] = 3,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="directory of the tokenizer of pairs; default: the base model's"),
    ] = None,
    round: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="round of the stage (for evaluate-policy: number of the policy); with FILE: pairs "
            "of a round",
        ),
    ] = None,
) -> None:
    """Show preference pairs or trajectories, with trained text in color.

    Without FILE the pairs of a round are shown. The options that choose records can be combined.
    """
    from pipeline.evaluation.selection import Selection

    _check("--kind", kind, get_args(PairKind))
    _check("--stop", stop, get_args(Stop))
    of_file = source is not None
    if source is None:
        source = _output(chosen, stage, round)
    else:
        refuse_options(context, ("data", "stage"), "with FILE; remove one of them")
        if str(source) == "-":  # the first record is read twice
            raise InputError("steep view does not read standard input; name a file")
        source = _record_file(source)
        if source.exists() and not source.is_file():
            raise InputError.at(source, None, "is not a regular file; name one")
    from pipeline.evaluation.terminal import view_pairs, view_trajectories

    keep = Selection(
        ids=frozenset(ids or ()),
        kinds=frozenset(kind or ()),
        datasets=frozenset(dataset or ()),
        hops=frozenset([hop] if hop else ()),
        rounds=frozenset([round] if of_file and round is not None else ()),
        stops=frozenset(stop or ()),
        contains=contains,
    )
    if _holds_pairs(source):
        if keep.datasets or keep.hops:
            keep = replace(keep, questions=_questions(source, keep), datasets=(), hops=())
        count = view_pairs(source, limit, tokenizer=tokenizer or _base_model(chosen), keep=keep)
    else:
        count = view_trajectories(source, limit, keep=keep)
    if keep and not count:
        asked = (
            f"no record of {', '.join(ids)}" if ids else "no record has what the options ask for"
        )
        raise InputError.at(source, None, asked)


def _check(option: str, given: list[str] | None, allowed: tuple[str, ...]) -> None:
    """Raise InputError for a value that no record has."""
    for value in given or ():
        if value not in allowed:
            raise InputError(
                f"{option} {one_line(value, 40)!r} is not known; choose one of {', '.join(allowed)}"
            )


def _output(chosen: Chosen, stage: Stage, round: int | None) -> Path:
    """The file of records of a complete stage."""
    number = 0 if stage == "evaluate-policy" and round is None else round
    task = chosen.task(stage, number)
    if not task.complete():
        command = ["steep", "run", stage, "--round", str(task.round_number), *task.options]
        raise StoreError(f"{task.label} is not done; run: {shlex.join(command)}")
    return _record_file(task.directory)


def _questions(file: Path, keep: Selection) -> frozenset[str]:
    """The questions of the data sets and hops in ``keep``.

    A pair holds neither, so both are read from the trajectories that the pairs were made of. Raises
    InputError when these are not in the same store.
    """
    from pipeline.run.store import read_manifest

    try:
        made_from = read_manifest(file.parent).get("made_from", {})
    except StoreError:
        made_from = {}
    scored = file.parents[2] / "score" / str(made_from.get("score")) / "trajectories.parquet"
    if "score" not in made_from or not scored.is_file():
        option = "--dataset" if keep.datasets else "--hop"
        raise InputError(
            f"{option} needs the scored trajectories of the pairs in {file}, which are not in the "
            f"same store; remove {option}, or name the output of the stage pair"
        )
    rows = iterate_parquet(scored, ["question_id", "dataset", "hop"])
    return frozenset(
        row["question_id"]
        for row in rows
        if (not keep.datasets or row["dataset"] in keep.datasets)
        and (not keep.hops or row["hop"] in keep.hops)
    )


def _record_file(source: Path) -> Path:
    """The file itself, or the file of pairs or trajectories in a stage's directory."""
    if not source.is_dir():
        return source
    files = [source / name for name in _FILES if (source / name).is_file()]
    if not files:
        raise InputError.at(source, None, f"the directory has no {' or '.join(_FILES)}")
    return files[0]


def _holds_pairs(source: Path) -> bool:
    """Whether a file holds pairs, by the fields of its first record.

    Raises InputError when it holds neither pairs nor trajectories.
    """
    parquet = source.suffix == ".parquet"
    fields = next(
        iterate_parquet(source) if parquet else (row for _, row in read_jsonl(source)), None
    )
    if fields is None:
        raise InputError.at(source, None, "the file has no records")
    if "chosen_ids" in fields:
        return True
    if "output" not in fields:
        raise InputError.at(
            source,
            None,
            "neither pairs nor trajectories; expected the records of the stages pair, sample or "
            "score, as docs/data.md describes them",
        )
    return False


def _base_model(chosen: Chosen) -> Path:
    from pipeline.core.shipped import find_model

    return Path(find_model(chosen.load().model.base))
