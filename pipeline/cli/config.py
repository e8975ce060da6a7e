"""``steep config``: the resolved configuration, single settings, and the editors' schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import options
from pipeline.cli.printing import print_json

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.config.lookup import Field

app = typer.Typer(
    no_args_is_help=True,
    help="Show a configuration, explain a setting, or print the schema of files.",
)


def _complete_settings(incomplete: str) -> list[str]:
    """Dotted names of settings that are not in lists."""
    from pipeline.config.lookup import all_names

    return sorted(name for name in all_names() if name.startswith(incomplete))


@app.command()
@options.with_configuration
def show(
    chosen: options.Chosen,
    changed: Annotated[
        bool, typer.Option("--changed", help="only what differs from the defaults or the base file")
    ] = False,
) -> None:
    """Print the resolved configuration as YAML; comments mark changes from base and default."""
    from pipeline.config.reading import load_base
    from pipeline.config.writing import as_text, entries

    base = load_base(chosen.config, chosen.root)
    found = entries(chosen.load(), None if base is None else base[1])
    shown = [entry for entry in found if entry.changed or not changed]
    differ = sum(entry.changed for entry in found)
    compared = "the defaults" if base is None else f"the defaults or the base {base[0]}"
    typer.echo(f"# {chosen.config}: {differ} of {len(found)} settings differ from {compared}")
    typer.echo(as_text(shown), nl=False)


@app.command()
@options.with_configuration
def explain(
    chosen: options.Chosen,
    key: Annotated[
        str,
        typer.Argument(
            help="setting or block, such as sampling.samples", autocompletion=_complete_settings
        ),
    ],
    as_json: options.JsonOption = False,
) -> None:
    """Explain a setting: its values, default, meaning, kind, and the stages that read it."""
    from pipeline.config.lookup import find_field

    field = find_field(key)
    settings = chosen.load()
    if field.round is not None:
        settings.check_round(field.round)
        settings = settings.of_round(field.round)
    facts = _facts(field, settings)
    if as_json:
        print_json(facts)
        return
    typer.echo(f"{facts['key']}: {facts['description']}")
    for name in ("values", "default", "here", "read by", "change"):
        if name in facts:
            value = facts[name] if isinstance(facts[name], str) else json.dumps(facts[name])
            typer.echo(f"  {name + ':':<9} {value}")
    for name, description in facts.get("settings", {}).items():
        typer.echo(f"  {name}: {description}")


def _facts(field: Field, settings: Config) -> dict[str, Any]:
    """The known facts about a setting, as JSON values."""
    import tasks as tasks  # declares the stages
    from pipeline.engine.settings_reference import setting_stages

    facts: dict[str, Any] = {"key": field.place, "description": field.info.description}
    readers = {"read by": setting_stages(field.place)}
    if field.below is not None:
        below = {name: info.description for name, info in field.below.model_fields.items()}
        return facts | {"settings": below} | readers
    facts["values"] = field.values
    facts["default"] = "none; it must be set" if field.default is ... else field.default
    here = _value(settings, field.key)
    facts |= {} if here is ... else {"here": here}
    return facts | readers | {"change": _CHANGES[field.kind]}


_CHANGES = {
    "result": "decides results: it is in fingerprints, so a change reruns these stages and those "
    "after them",
    "execution": "says how work is executed: it is in no fingerprint, so a change reruns nothing",
    "indirect": "decides results through the content that it names; fingerprints include this "
    "content",
}


def _value(settings: Config, key: str) -> Any:
    """The JSON value of a setting in a configuration; ... if a block above it is null."""
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
) -> None:
    """Print the JSON schema of configuration files, with which editors complete and check them."""
    from pipeline.config.schema import file_schema
    from pipeline.core.atomic import text_output

    with text_output(output) as write:
        write(json.dumps(file_schema(), indent=1, ensure_ascii=False) + "\n")
