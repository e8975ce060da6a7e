"""All settings of the configuration, block by block, with what the fields say about themselves.

Input: the blocks (`pipeline.config.run.Config`). Output: every block with the places where it is used,
and its settings with kind, default and description.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.fields import FieldInfo

from pipeline.config.base import Block, Execution, Indirect
from pipeline.config.run import Config

Kind = Literal["result", "execution", "indirect"]


@dataclass(frozen=True)
class Setting:
    """One field of a block; ``default`` is a JSON value, or ... for a setting without a default.

    ``values`` are the values that it can have, where they are listed. ``kind`` is "result" for a
    setting in fingerprints, else the mark of the field (`pipeline.config.base`).
    """

    name: str
    kind: Kind
    default: Any
    values: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class BlockSettings:
    """A block, and its settings that are no blocks.

    ``places`` are its dotted names in a configuration: several where blocks share a type, empty text
    for the whole configuration, and ``name[]`` for the items of a list.
    """

    block: type[Block]
    places: tuple[str, ...]
    settings: tuple[Setting, ...]


def all_blocks() -> list[BlockSettings]:
    """Every block of the configuration once, in the order in which a configuration has them."""
    places: dict[type[Block], list[str]] = {}
    for block, place in _places(Config, ""):
        places.setdefault(block, []).append(place)
    return [
        BlockSettings(block, tuple(names), tuple(_settings(block)))
        for block, names in places.items()
    ]


def _places(block: type[Block], place: str) -> Iterator[tuple[type[Block], str]]:
    yield block, place
    for name, info in block.model_fields.items():
        below, suffix = _block_of(info.annotation)
        if below is not None:
            yield from _places(below, f"{place}.{name}{suffix}".lstrip("."))


def _block_of(annotation: Any) -> tuple[type[Block] | None, str]:
    """The block in an annotation, which may be optional or in a list, and the suffix of its place."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation, ""
    in_list = typing.get_origin(annotation) is tuple
    for argument in typing.get_args(annotation):
        block, suffix = _block_of(argument)
        if block is not None:
            return block, "[]" if in_list else suffix
    return None, ""


def _settings(block: type[Block]) -> Iterator[Setting]:
    for name, info in block.model_fields.items():
        if _block_of(info.annotation)[0] is None:
            yield Setting(
                name=name,
                kind=kind_of(info),
                default=... if info.is_required() else _default(info),
                values=tuple(_values(info.annotation)),
                description=info.description or "",
            )


def kind_of(info: FieldInfo) -> Kind:
    """What a change of a field does to results."""
    for mark in info.metadata:
        if isinstance(mark, Execution):
            return "execution"
        if isinstance(mark, Indirect):
            return "indirect"
    return "result"


def _default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True)
    return list(value) if isinstance(value, tuple) else value


def _values(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is Literal:
        yield from map(str, typing.get_args(annotation))
    else:
        for argument in typing.get_args(annotation):
            yield from _values(argument)
