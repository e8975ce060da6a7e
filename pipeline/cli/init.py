"""``steep init`` and ``steep data``: a configuration to start from, and the official data sets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import DEFAULT_CONFIGURATION, JsonOption, complete_configurations
from pipeline.cli.printing import print_json, print_lines
from pipeline.core.atomic import STDOUT, text_output
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.shipped import (
    CONFIGURATIONS,
    configuration_name,
    configuration_names,
    shipped_configuration,
)
from pipeline.knowledge.corpus.fetch import fetch
from pipeline.knowledge.corpus.official import DATASETS, OFFICIAL

OWN = "own"
_BASE = re.compile(r"^base: *(\S+)", re.MULTILINE)


def init(
    name: Annotated[
        str,
        typer.Argument(
            help="shipped configuration or variant; own: for documents and questions of your own",
            autocompletion=complete_configurations,
        ),
    ] = DEFAULT_CONFIGURATION,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file to write; default: NAME.yaml; - is stdout"),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="list configurations and variants instead")
    ] = False,
    docs: Annotated[
        list[Path] | None,
        typer.Option(help="own: documents, a file, a folder or a glob; repeatable"),
    ] = None,
    questions: Annotated[
        list[Path] | None, typer.Option(help="own: questions with answers; repeatable")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="own: address of a chat model that judges searches")
    ] = None,
    model: Annotated[str | None, typer.Option(help="own: name of the model at --endpoint")] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="own: model to train, a hub name, a directory, a GGUF file or package:NAME; by "
            "default the tiny reader, or Qwen2.5-3B-Instruct with --gpu"
        ),
    ] = None,
    gpu: Annotated[int, typer.Option(min=0, help="own: GB of the GPU; 0: a laptop")] = 0,
    method: Annotated[
        str | None,
        typer.Option(help="own: search-r1, tearag or hiprag; by default the data decide"),
    ] = None,
) -> None:
    """Write a configuration to edit and run: a shipped one, or one for your own data."""
    from pipeline.cli.own import Wanted, own_configuration

    if list_names:
        _print_names()
        return
    wanted = Wanted(docs or (), questions or (), endpoint, model, gpu, method, base)
    target = output or Path(f"{Path(name).name.removesuffix('.yaml')}.yaml")
    if name != OWN and wanted != Wanted(()):
        raise InputError(f"--docs and the options after it describe own data; use steep init {OWN}")
    if name == OWN:
        text, lines, then = own_configuration(wanted, target)
    else:
        text, lines, then = _text(name), [], _next_steps(name, target)
    if str(output) == STDOUT:
        typer.echo(text, nl=False)
        return
    if target.is_file():
        problem = "the file exists; name another with --output, or remove it"
        raise InputError.at(target, problem)
    with text_output(target) as write:
        write(text)
    print_lines([*lines, f"wrote {target}", then])


def _text(name: str) -> str:
    """The text of a configuration or variant; its ``base:`` is a shipped name, valid anywhere.

    Raises ConfigError for an unknown name.
    """
    from pipeline.config.base import shown
    from pipeline.config.variants import variants
    from pipeline.config.writing import yaml_text

    source = shipped_configuration(name)
    if source is None and (variant := variants().get(name)):
        base = variant.base if variant.base in variants() else f"{variant.base}.yaml"
        values = {"base": base, "name": name, **variant.settings}
        return f"# {variant.about}.\n" + yaml_text(values)
    if source is None:
        raise ConfigError(f"no shipped configuration {shown(name)}; steep init --list shows them")

    def renamed(match: re.Match[str]) -> str:
        base = (source.parent / match.group(1)).resolve()
        return f"base: {configuration_name(base)}.yaml"

    return _BASE.sub(renamed, source.read_text(encoding="utf-8"))


def _next_steps(name: str, target: Path) -> str:
    from pipeline.config import load

    settings = load(name)
    data = "" if settings.data.closed_world else " --data DIR"
    options = f"--config {shlex.quote(str(target))}{data}"
    if settings.name.startswith("recall-"):
        return f"Edit it, then measure retrieval with:\n  steep recall {options}"
    return (
        "Edit it, then run it and show its progress with:\n"
        f"  steep run {options}\n  steep status {options}"
    )


def _print_names() -> None:
    from pipeline.config.variants import variants

    listed = {}
    for name in configuration_names():
        first = (CONFIGURATIONS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        listed[name] = first.removeprefix("#").strip()
    listed |= {name: variant.about for name, variant in variants().items()}
    width = max(map(len, listed))
    for name, about in listed.items():
        typer.echo(f"{name:<{width}}  {about}")


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
    """Download and verify the data sets that the published configurations read."""
    unknown = [name for name in dataset or () if name not in DATASETS]
    if unknown:
        raise InputError(f"--dataset {unknown[0]}: expected one of {', '.join(DATASETS)}")
    chosen = [file for file in OFFICIAL if not dataset or file.dataset in dataset]
    done, faults = fetch(chosen, data, lambda line: typer.echo(line, err=as_json))
    if as_json:
        print_json(done)
    print_lines((f"error: {fault}" for fault in faults), err=True)
    if faults:
        raise typer.Exit(2)
