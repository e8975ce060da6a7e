"""Find a setting by its dotted name, and say in words what it is.

Input: a name such as ``sampling.samples``, ``corpus.files.0.path`` or ``per_round.2.pairs``. Output: the
block that has the field, and the values that the field takes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.config.base import Block
from pipeline.config.explain import field_block
from pipeline.config.per_round import PER_ROUND
from pipeline.config.run import Config
from pipeline.config.schema import property_schema
from pipeline.config.walk import all_blocks
from pipeline.core.errors import ConfigError
from pipeline.core.yaml_files import shown_key

_MOST_NEAR = 3


@dataclass(frozen=True)
class Field:
    """A field: its dotted name without places in lists and rounds, its block, and the block in it.

    ``key`` is the name as it was asked for, with current names, and ``round`` its round of ``per_round``.
    """

    name: str
    key: str
    round: int | None
    block: type[Block]
    info: FieldInfo
    below: type[BaseModel] | None

    @property
    def values(self) -> str:
        """The values that it takes, in words."""
        return "; or ".join(
            dict.fromkeys(_words(property_schema(self.block, self.name.split(".")[-1])))
        )

    @property
    def default(self) -> Any:
        """The default as a JSON value; ... where there is none."""
        if self.info.is_required():
            return ...
        value = self.info.get_default(call_default_factory=True)
        if isinstance(value, Block):
            return value.model_dump(mode="json")
        return list(value) if isinstance(value, tuple) else value


def find_field(key: str) -> Field:
    """The field called ``key``; raises ConfigError, with similar names, when there is none."""
    key = key.strip()
    parts = [part for part in re.split(r"\.|\[\]", key) if part and not part.isdecimal()]
    number_of_round = re.match(rf"{PER_ROUND}\.(\d{{1,4}})\.", key)
    asked = key
    if number_of_round is not None:
        parts, asked = parts[1:], key[number_of_round.end() :]
    block: type[Any] | None = Config
    for number, part in enumerate(parts):
        info = block.model_fields.get(part) if block is not None else None
        if block is None or info is None:
            raise ConfigError(_unknown(key))
        below = field_block(block, part) if part != PER_ROUND else None
        if number == len(parts) - 1:
            round = None if number_of_round is None else int(number_of_round[1])
            return Field(".".join(parts), asked, round, block, info, below)
        block = below
    raise ConfigError(_unknown(key))


def _unknown(key: str) -> str:
    names = list(all_names())
    last = key.rpartition(".")[2]
    ends = [name for name in names if name.rpartition(".")[2] == last]
    near = sorted(ends, key=lambda name: name.count(".")) or difflib.get_close_matches(
        key, names, _MOST_NEAR
    )
    hint = f"; there is {', '.join(near)}" if near else "; steep config show lists all settings"
    return f"there is no setting {shown_key(key)}{hint}"


def all_names() -> Iterator[str]:
    """The dotted names of all settings and blocks."""
    for block in all_blocks():
        for place in block.places:
            if place:
                yield place
            for setting in block.settings:
                yield f"{place}.{setting.name}".lstrip(".")


def _words(schema: dict[str, Any]) -> Iterator[str]:
    """The kinds of values of a property of the schema."""
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _words(option)
    elif "$ref" in schema:
        yield "a block of settings"
    elif "enum" in schema:
        yield f"one of {', '.join(map(str, schema['enum']))}"
    elif "const" in schema:
        yield str(schema["const"])
    elif isinstance(schema.get("type"), list):
        for kind in schema["type"]:
            yield from _words({**schema, "type": kind})
    elif schema.get("type") in ("integer", "number"):
        kind = "a whole number" if schema["type"] == "integer" else "a number"
        yield f"{kind}{_bounds(schema)}"
    elif schema.get("type") == "array":
        inner = "; or ".join(dict.fromkeys(_words(schema.get("items", {}))))
        least = schema.get("minItems", 0)
        yield f"a list{f' of at least {least}' if least else ''} ({inner})"
    else:
        kinds = {
            "boolean": "true or false",
            "string": "a text",
            "null": "null",
            "object": "a mapping",
        }
        yield kinds.get(str(schema.get("type")), "any value")


def _bounds(schema: dict[str, Any]) -> str:
    words = {
        "exclusiveMinimum": "above", "minimum": "from", "maximum": "up to", "exclusiveMaximum": "below"
    }  # fmt: skip
    found = [f"{word} {_number(schema[name])}" for name, word in words.items() if name in schema]
    return f" {', '.join(found)}" if found else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"
