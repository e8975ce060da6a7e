"""``steep view``: pairs or trajectories in the terminal, with the training mask in color.

`steep browse` shows the same of a run and searches it; this also shows files, and needs no port.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from pipeline.cli.options import Chosen, complete_stages, refuse_options, with_configuration
from pipeline.core.errors import InputError, Place
from pipeline.core.record_io import iterate_input
from pipeline.core.records import Pair, PairKind, Stop, Trajectory
from pipeline.core.text import one_line

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
        str,
        typer.Option(
            help="without FILE: the stage whose pairs or trajectories are shown",
            autocompletion=complete_stages,
        ),
    ] = "pair",
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="question or trajectory, or the beginning of its id; repeatable"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"pairs of a kind: {', '.join(get_args(PairKind))}; repeatable"),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help=f"trajectories that ended with {', '.join(get_args(Stop))}; repeatable"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="number of records to show")] = 3,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="directory of the tokenizer of pairs; default: the base model's"),
    ] = None,
    round: Annotated[
        int | None,
        typer.Option("--round", help="round or policy of the stage; with FILE: pairs of a round"),
    ] = None,
) -> None:
    """Show preference pairs or trajectories, with trained text in color.

    Without FILE the pairs of a round are shown. The options that choose records can be combined.
    """
    from pipeline.evaluation import terminal

    for name, given, known in (("kind", kind, PairKind), ("stop", stop, Stop)):
        if unknown := set(given or ()) - set(get_args(known)):
            raise InputError(
                f"--{name} {one_line(min(unknown), 40)!r} is not known; choose one of "
                f"{', '.join(get_args(known))}"
            )
    facts: dict[str, Collection[object] | None] = {"kind": kind, "stop": stop}
    if source is None:
        source = _record_file(chosen.finished(stage, round))
    else:
        refuse_options(context, ("data", "stage"), "with FILE; remove one of them")
        facts["round"] = None if round is None else (round,)
        source = _record_file(source)
        if str(source) == "-" or (source.exists() and not source.is_file()):
            raise InputError.at(source, "is not a regular file; name one")
    records = _kind(source)
    if records is Pair and tokenizer is None:
        from pipeline.core.model_files import find_model

        tokenizer = Path(find_model(chosen.load().model.base))
    asked = {name: values for name, values in facts.items() if values}
    count = terminal.view(
        source, records, limit, tokenizer=tokenizer or Path(), ids=ids or (), facts=asked
    )
    if (ids or asked) and not count:
        problem = f"of {', '.join(ids)}" if ids else "has what the options ask for"
        raise InputError.at(source, f"no record {problem}")


def _record_file(source: Path) -> Path:
    """The file itself, or the file of pairs or trajectories in a stage's directory."""
    if not source.is_dir():
        return source
    files = [source / name for name in _FILES if (source / name).is_file()]
    if not files:
        raise InputError.at(source, f"the directory has no {' or '.join(_FILES)}")
    return files[0]


def _kind(source: Path) -> type[Any]:
    """`Pair` or `Trajectory`, by the fields of the first record of a file.

    Raises InputError when it holds neither pairs nor trajectories.
    """
    with Place(source):
        fields = next((record for _, record in iterate_input(source, Trajectory)), None)
        if fields is None:
            raise InputError("the file has no records")
        if not {"chosen_ids", "output"} & fields.keys():
            raise InputError(
                "neither pairs nor trajectories; expected the records of the stages pair, sample "
                "or score, as docs/data.md describes them"
            )
        return Pair if "chosen_ids" in fields else Trajectory
