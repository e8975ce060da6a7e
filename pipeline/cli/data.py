"""Command ``steep data``: the official data sets, from where their authors publish them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JsonOption
from pipeline.core.errors import InputError
from pipeline.core.text import visible
from pipeline.corpus.fetch import fetch
from pipeline.corpus.official import DATASETS, OFFICIAL


def data(
    data: Annotated[
        Path, typer.Option("--data", help="directory of the data sets, DATA of the configurations")
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help=f"data set: {', '.join(DATASETS)}; repeatable [default: all]", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download the official data sets that the published configurations read, and verify them."""
    unknown = [name for name in dataset or () if name not in DATASETS]
    if unknown:
        raise InputError(f"--dataset {unknown[0]}: expected one of {', '.join(DATASETS)}")
    chosen = [file for file in OFFICIAL if not dataset or file.dataset in dataset]
    done, faults = fetch(chosen, data, lambda line: typer.echo(line, err=as_json))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in done], indent=2))
    for fault in faults:
        print(f"error: {visible(fault)}", file=sys.stderr)
    if faults:
        raise typer.Exit(2)
