"""Walks over all settings: the blocks below a block, and the plain types in an annotation."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

Wrap = Callable[[Any], Any]


@cache
def blocks(block: type[BaseModel]) -> set[type[BaseModel]]:
    """A block and all blocks below it."""
    found = {block}
    for field in block.model_fields.values():
        for kind, _ in parts(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
                found |= blocks(kind)
    return found


def parts(annotation: Any) -> Iterator[tuple[Any, Wrap]]:
    """The plain types in an annotation, each with a function that puts a value in its place."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from parts(arguments[0])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from parts(argument)
    elif origin is tuple:
        for kind, wrap in parts(arguments[0]):
            yield kind, lambda value, wrap=wrap: [wrap(value)]
    elif origin is dict:
        for kind, wrap in parts(arguments[0]):
            yield kind, lambda value, wrap=wrap: {wrap(value): 1}
        key = 1 if arguments[0] is not str else "key"
        for kind, wrap in parts(arguments[1]):
            yield kind, lambda value, wrap=wrap: {key: wrap(value)}
    else:
        yield annotation, lambda value: value
