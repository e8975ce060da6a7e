"""``steep config``: the resolved configuration, what a setting means, and the schema for editors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import completion, options

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.config.lookup import Field

app = typer.Typer(
    no_args_is_help=True,
    help="Show a configuration, explain a setting, or print the schema of files.",
)


@app.command()
def show(
    config: options.ConfigOption = options.DEFAULT_CONFIGURATION,
    set: options.SetOption = None,
    data: options.DataOption = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="only what differs from the defaults or the base file")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Print the resolved configuration as YAML; comments mark what differs from base and default."""
    from pipeline.config import load
    from pipeline.config.reading import load_base
    from pipeline.config.writing import ABSENT, as_text, entries

    root = None if data is None else str(data.absolute())
    settings = load(config, tuple(set or ()), root)
    base = load_base(config, root)
    found = entries(settings, None if base is None else base[1])
    chosen = [entry for entry in found if entry.changed or not changed]
    if as_json:
        differing = [
            {
                "key": entry.key,
                "value": entry.value,
                **({} if entry.default is ABSENT else {"default": entry.default}),
                **({} if entry.base is ABSENT else {"base": entry.base}),
            }
            for entry in found
            if entry.changed
        ]
        values = {"settings": settings.model_dump(mode="json"), "changed": differing}
        typer.echo(json.dumps(values, indent=2))
        return
    differ = sum(entry.changed for entry in found)
    compared = "the defaults" if base is None else f"the defaults or the base {base[0]}"
    typer.echo(f"# {config}: {differ} of {len(found)} settings differ from {compared}")
    typer.echo(as_text(chosen), nl=False)


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="setting or block, such as sampling.samples", autocompletion=completion.settings
        ),
    ],
    config: options.ConfigOption = options.DEFAULT_CONFIGURATION,
    set: options.SetOption = None,
    data: options.DataOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say what a setting is: its values, default, meaning, the stages that read it, and its kind."""
    from pipeline.config import load
    from pipeline.config.lookup import find_field

    field = find_field(key)
    root = None if data is None else str(data.absolute())
    settings = load(config, tuple(set or ()), root)
    if field.round is not None:
        settings.check_round(field.round)
        settings = settings.of_round(field.round)
    facts = _facts(field, settings)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{facts['key']}: {facts['description']}")
    for name in ("values", "default", "here", "read by", "change"):
        if name in facts:
            value = facts[name] if isinstance(facts[name], str) else json.dumps(facts[name])
            typer.echo(f"  {name + ':':<9} {value}")
    for name, description in facts.get("settings", {}).items():
        typer.echo(f"  {name}: {description}")


def _facts(field: Field, settings: Config) -> dict[str, Any]:
    """What is known about a setting, as JSON values."""
    from pipeline.config.lookup import kind_of
    from tasks.settings_reference import setting_stages

    facts: dict[str, Any] = {"key": field.name, "description": field.info.description}
    if field.below is not None:
        facts["settings"] = {
            name: info.description for name, info in field.below.model_fields.items()
        }
        facts["read by"] = setting_stages(field.name)
        return facts
    facts["values"] = field.values
    facts["default"] = "none; it must be set" if field.default is ... else field.default
    here = _value(settings, field.key)
    if here is not ...:
        facts["here"] = here
    facts["read by"] = setting_stages(field.name)
    facts["change"] = _CHANGES[kind_of(field.info)]
    return facts


_CHANGES = {
    "result": "decides results: it is in fingerprints, so a change reruns these stages and those after them",
    "execution": "says how work is executed: it is in no fingerprint, so a change reruns nothing",
    "indirect": "decides results through what it names, whose content is in fingerprints",
}


def _value(settings: Config, key: str) -> Any:
    """The value of a setting in a configuration as a JSON value; ... where a block above it is null."""
    value: Any = settings.model_dump(mode="json")
    for part in key.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return ...
    return value


@app.command()
def schema(
    output: Annotated[
        str, typer.Option("--output", "-o", help="file to write; - is standard output")
    ] = "-",
    path: Annotated[
        bool, typer.Option("--path", help="print the path of the shipped schema instead")
    ] = False,
) -> None:
    """Print the JSON schema of configuration files, with which editors complete and check them."""
    from pipeline.core.atomic import text_output
    from pipeline.core.shipped import SCHEMA

    if path:
        typer.echo(str(SCHEMA))
        return
    with text_output(output) as write:
        write(schema_text())


def schema_text() -> str:
    """The text of the shipped schema, which ``make settings-reference`` writes."""
    from pipeline.config.schema import file_schema

    return json.dumps(file_schema(), indent=1, ensure_ascii=False) + "\n"
