"""The JSON schema of a configuration file, for editors.

Input: the blocks of `pipeline.config.run.Config`. Output: a schema (draft 2020-12) of files. It
adds rules that pydantic's own schema lacks: a file with ``base:`` holds only the settings that
differ, and ``name`` may be left out. Required settings inside of
blocks, which the base may have, and rules that validators compute
(settings that must fit together, addresses, file names) are not in it; `steep check` checks them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pipeline.config.base import Block
from pipeline.config.per_round import PER_ROUND, ROUND_SETTINGS
from pipeline.config.run import Config

Schema = dict[str, Any]
_ROUND = "^[1-9][0-9]{0,3}$"
_HOPS = "^[1-9][0-9]?$"


@cache
def file_schema() -> Schema:
    """The schema of a configuration file, not to be changed; numbers as keys become texts."""
    schema = Config.model_json_schema(mode="validation")
    blocks: Schema = schema.pop("$defs")
    for block in blocks.values():
        _clean(block)
    needed = schema["required"]
    _clean(schema)
    properties: Schema = schema["properties"]
    properties["name"]["pattern"] = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
    of_round = {
        "type": "object",
        "properties": {
            name: {"$ref": f"#/properties/{name}"}
            for name in dict.fromkeys(name.partition(".")[0] for name in ROUND_SETTINGS)
        },
        "additionalProperties": False,
    }
    properties[PER_ROUND] |= _by_key(_ROUND, {"anyOf": [of_round, {"type": "null"}]})
    properties[PER_ROUND]["type"] = ["object", "null"]
    for name in ("sizes", "test_sizes"):
        sizes = blocks["SftData"]["properties"][name]
        sizes |= _by_key(_HOPS, sizes["additionalProperties"])
    blocks["QuestionFile"]["properties"]["filter"]["additionalProperties"] = {
        "type": ["string", "integer", "boolean"]
    }
    base = {"type": "string", "minLength": 1, "description": "file whose settings this one changes"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "steep configuration",
        **schema,
        "properties": {"base": base, **properties},
        "if": {"required": ["base"]},
        "else": {"required": [name for name in needed if name != "name"]},
        "$defs": blocks,
    }


def property_schema(block: type[Block], name: str) -> Schema:
    """The schema of one field of a block, as `file_schema` has it."""
    schema = file_schema()
    properties = schema if block is Config else schema["$defs"][block.__name__]
    found: Schema = properties["properties"][name]
    return found


def _clean(schema: Schema) -> None:
    """Drop parts that editors do not need: titles, blocks as defaults, and required fields."""
    schema.pop("required", None)
    schema.pop("title", None)
    for value in schema["properties"].values():
        value.pop("title", None)
        if isinstance(value.get("default"), dict):
            value.pop("default")


def _by_key(pattern: str, value: Schema) -> Schema:
    return {"patternProperties": {pattern: value}, "additionalProperties": False}
