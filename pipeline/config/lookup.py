"""All settings of the configuration: each block with its places, and a setting by its dotted name.

Input: the blocks (`pipeline.config.run.Config`), and a name such as ``sampling.samples``,
``corpus.files.0.path`` or ``per_round.2.pairs``. Output: settings with kind, default and
description; the block with the field of that name, and its allowed values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.config.base import Block, Execution, Indirect
from pipeline.config.explain import block_of, field_block
from pipeline.config.per_round import PER_ROUND
from pipeline.config.run import Config
from pipeline.config.schema import property_schema
from pipeline.config.yaml_files import shown_key
from pipeline.core.errors import ConfigError

_MOST_NEAR = 3


Kind = Literal["result", "execution", "indirect"]


@dataclass(frozen=True)
class Setting:
    """One field of a block."""

    name: str
    block: type[Block]
    info: FieldInfo

    @property
    def kind(self) -> Kind:
        """How a change affects results: the mark of the field, or "result" without a mark."""
        if self.name in self.block.marked(Execution):
            return "execution"
        return "indirect" if self.name in self.block.marked(Indirect) else "result"

    @property
    def values(self) -> str:
        """The allowed values, in words."""
        return "; or ".join(dict.fromkeys(_words(property_schema(self.block, self.name))))

    @property
    def default(self) -> Any:
        """The default as a JSON value; ... for a setting without a default."""
        if self.info.is_required():
            return ...
        value = self.info.get_default(call_default_factory=True)
        if isinstance(value, Block):
            return value.model_dump(mode="json")
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Field(Setting):
    """A field by its dotted name.

    ``place`` is the name without list positions and rounds, ``key`` the requested name, and
    ``round`` its round of ``per_round``. ``below`` is the block in the field.
    """

    place: str
    key: str
    round: int | None
    below: type[BaseModel] | None


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
            return Field(part, block, info, ".".join(parts), asked, round, below)
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


_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "null": "null",
    "object": "a mapping",
}


def _words(schema: dict[str, Any]) -> Iterator[str]:
    """The kinds of values of a property of the schema."""
    kind = schema.get("type")
    options = [{**schema, "type": one} for one in kind] if isinstance(kind, list) else []
    if options := options or schema.get("anyOf", []):
        for option in options:
            yield from _words(option)
    elif "$ref" in schema:
        yield "a block of settings"
    elif "const" in schema:
        yield str(schema["const"])
    elif "enum" in schema:
        yield f"one of {', '.join(map(str, schema['enum']))}"
    elif kind == "array":
        inner = "; or ".join(dict.fromkeys(_words(schema.get("items", {}))))
        least = schema.get("minItems", 0)
        yield f"a list{f' of at least {least}' if least else ''} ({inner})"
    else:
        yield f"{_KINDS.get(str(kind), 'any value')}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    words = {
        "exclusiveMinimum": "above",
        "minimum": "from",
        "maximum": "up to",
        "exclusiveMaximum": "below",
    }
    found = [f"{word} {_number(schema[name])}" for name, word in words.items() if name in schema]
    return f" {', '.join(found)}" if found else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


@dataclass(frozen=True)
class BlockSettings:
    """A block, and its own settings that are not blocks.

    ``places`` are its dotted names in a configuration: several if blocks share a type, the empty
    text for the whole configuration, and ``name[]`` for the items of a list.
    """

    block: type[Block]
    places: tuple[str, ...]
    settings: tuple[Setting, ...]


def all_blocks() -> list[BlockSettings]:
    """Every block of the configuration once, in the order in which a configuration has them.

    Blocks that share settings, such as the trainers, have a base block, which lists them.
    """
    places: dict[type[Block], list[str]] = {}
    for block, place in _places(Config, ""):
        for owner in block.__mro__[: block.__mro__.index(Block)]:
            places.setdefault(owner, []).append(place)
    return [
        BlockSettings(block, tuple(names), tuple(_settings(block)))
        for block, names in places.items()
    ]


def _places(block: type[Block], place: str) -> Iterator[tuple[type[Block], str]]:
    yield block, place
    for name, info in block.model_fields.items():
        below, suffix = block_of(info.annotation)
        if below is not None:
            yield from _places(below, f"{place}.{name}{suffix}".lstrip("."))


def _settings(block: type[Block]) -> Iterator[Setting]:
    for name in vars(block).get("__annotations__", ()):
        info = block.model_fields.get(name)
        if info is not None and block_of(info.annotation)[0] is None:
            yield Setting(name, block, info)
