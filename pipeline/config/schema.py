"""The JSON schema of a configuration file, for editors.

Input: the blocks of `pipeline.config.run.Config`. Output: a schema (draft 2020-12) of files. It
adds rules that pydantic's own schema lacks: a file with ``base:`` holds only the settings that
differ, ``name`` may be left out, and some values have a short form. Rules that validators compute
(settings that must fit together, addresses, file names) are not in it; `steep check` checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from pipeline.config.base import Block
from pipeline.config.per_round import PER_ROUND, ROUND_SETTINGS
from pipeline.config.run import Config

Schema = dict[str, Any]
_ROUND = "^[1-9][0-9]{0,3}$"
_HOPS = "^[1-9][0-9]?$"


def file_schema() -> Schema:
    """The schema of a configuration file; numbers as keys in YAML become texts."""
    schema = Config.model_json_schema(mode="validation")
    blocks: Schema = schema.pop("$defs")
    for block in blocks.values():
        _clean(block)
    _clean(schema)
    properties: Schema = schema["properties"]
    properties["name"]["pattern"] = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
    properties[PER_ROUND] |= _by_key(_ROUND, _or_null(_of_round()))
    properties[PER_ROUND]["type"] = ["object", "null"]
    for name in ("sizes", "test_sizes"):
        sizes = blocks["SftData"]["properties"][name]
        sizes |= _by_key(_HOPS, sizes["additionalProperties"])
    blocks["QuestionFile"]["properties"]["filter"]["additionalProperties"] = {
        "type": ["string", "integer", "boolean"]
    }
    _allow_short_forms(blocks, properties)
    base = {"type": "string", "minLength": 1, "description": "file whose settings this one changes"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "steep configuration",
        **schema,
        "properties": {"base": base, **properties},
        "if": {"required": ["base"]},
        "else": _required(Config, {"name"}),
        "$defs": blocks,
    }


def property_schema(block: type[Block], name: str) -> Schema:
    """The schema of one field of a block, as `file_schema` has it."""
    schema = file_schema()
    properties = schema if block is Config else schema["$defs"][block.__name__]
    found: Schema = properties["properties"][name]
    return found


def _clean(schema: Schema) -> None:
    """Drop parts that editors do not need: field titles, blocks as defaults, and required fields.

    Which fields are required depends on ``base:``; see `_required`.
    """
    schema.pop("required", None)
    schema.pop("title", None)
    for value in schema["properties"].values():
        value.pop("title", None)
        if isinstance(value.get("default"), dict):
            value.pop("default")


def _by_key(pattern: str, value: Schema) -> Schema:
    return {"patternProperties": {pattern: value}, "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _of_round() -> Schema:
    """The settings of one round, as references to the settings of the run."""
    whole: Schema = {}
    for name in ROUND_SETTINGS:
        block, _, field = name.partition(".")
        if not field:
            whole[block] = {"$ref": f"#/properties/{block}"}
            continue
        of_block = whole.setdefault(
            block, {"type": "object", "properties": {}, "additionalProperties": False}
        )
        reference = f"#/$defs/{_name_of(Config, block)}/properties/{field}"
        of_block["properties"][field] = {"$ref": reference}
    return {"type": "object", "properties": whole, "additionalProperties": False}


def _name_of(block: type[Block], field: str) -> str:
    annotation = block.model_fields[field].annotation
    assert isinstance(annotation, type)
    return annotation.__name__


def _allow_short_forms(blocks: Schema, properties: Schema) -> None:
    """``execution: ray`` for ``execution: {kind: ray}``."""
    kinds = blocks["Executor"]["properties"]["kind"]["enum"]
    execution = properties["execution"]
    execution["anyOf"] = [{"$ref": execution.pop("$ref")}, {"enum": kinds}]


def _blocks(block: type[Block], seen: set[type[Block]] | None = None) -> Iterator[type[Block]]:
    """A block and the blocks below it, each once."""
    seen = set() if seen is None else seen
    if block in seen:
        return
    seen.add(block)
    yield block
    for field in block.model_fields.values():
        for below in _block_types(field.annotation):
            yield from _blocks(below, seen)


def _block_types(annotation: Any) -> Iterator[type[Block]]:
    if isinstance(annotation, type) and issubclass(annotation, Block):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _block_types(argument)


def _required(block: type[BaseModel], optional: frozenset[str] | set[str] = frozenset()) -> Schema:
    """The rule that blocks, at any depth, have their required fields; null and texts pass."""
    schema: Schema = {}
    if names := [
        name
        for name, field in block.model_fields.items()
        if field.is_required() and name not in optional
    ]:
        schema["required"] = names
    below: Schema = {}
    for name, field in block.model_fields.items():
        for kind in _block_types(field.annotation):
            if inside := _required(kind):
                in_list = getattr(field.annotation, "__origin__", None) is tuple
                below[name] = {"items": inside} if in_list else inside
    if below:
        schema["properties"] = below
    return schema
