"""Messages for invalid settings: file, key, value, and what to set instead.

Input: the `pydantic.ValidationError` of a `Config`. Output: one line per setting. A message never
holds the texts of a block with an endpoint, where an API key may be in the wrong place.
"""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from pipeline.config.base import Block, shown
from pipeline.config.evaluation import OVERRIDDEN, Evaluation
from pipeline.config.per_round import PER_ROUND
from pipeline.config.run import Config
from pipeline.config.yaml_files import shown_key
from pipeline.core.text import without_keys

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MOST = 10  # lines of one message
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "model_type": "a mapping of settings",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "a text that is not empty",
    "string_too_long": "a text of at most {max_length} characters",
}


def explain(path: Path, error: ValidationError) -> str:
    """The message for invalid settings of the configuration ``path``, one line per setting."""
    details = [item for item in error.errors(include_url=False) if not _repeated(item)]
    lines = [without_keys(f"{path}: {_problem(item)}") for item in details]
    if len(lines) > _MOST:
        lines[_MOST:] = [f"{path}: {len(lines) - _MOST} more settings are invalid"]
    return "\n".join(lines)


def _repeated(item: ErrorDetails) -> bool:
    """Whether other errors explain this one: a list counts as short without its invalid items."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def _problem(item: ErrorDetails) -> str:
    location = item["loc"]
    key = _dotted(location)
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(location)
    if kind == "missing":
        return f"{key}: missing; add it"
    if kind == "value_error":
        reason = item["msg"].removeprefix("Value error, ")
        return f"{key}: {reason}" if key else reason
    if kind == "invalid_key":
        return f"{key}: the key is a number; expected the name of a setting"
    if kind == "string_unicode":
        return f"{key or 'a key'}: the text holds a character that UTF-8 cannot encode; remove it"
    if kind not in _EXPECTED:
        return f"{key}: {item['msg']}"
    expected = _EXPECTED[kind].format(**_plain(context))
    named = "the key " if location[-1:] == ("[key]",) else ""
    return f"{named}{key} is {_shown(value, location)}; set it to {expected}"


def _plain(context: dict[str, Any]) -> dict[str, Any]:
    """Bounds without a needless decimal point."""
    return {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        for name, bound in context.items()
    }


def _dotted(location: tuple[int | str, ...]) -> str:
    """The key of a setting, without a part that may be a secret because it is not a plain name."""
    near = _near_endpoint(location)
    return ".".join(
        "…" if near and not re.fullmatch(r"[a-z_]{1,40}|\d+", str(part)) else shown_key(part)
        for part in location
        if part != "[key]"
    )


def _near_endpoint(location: tuple[int | str, ...]) -> bool:
    """Whether an API key may be in the wrong place there: the block has an endpoint in it."""
    return not {"graph", "hypergraph", "judges", "sft_data"}.isdisjoint(location)


def _shown(value: object, location: tuple[int | str, ...]) -> str:
    """The value of a setting, or only its type where it may be a secret."""
    hidden = isinstance(value, str) and _near_endpoint(location)
    return "a text" if hidden else shown(value)


def _unknown(location: tuple[int | str, ...]) -> str:
    """The message for an unknown key, with the known ones."""
    key = _dotted(location)
    name, colon, value = str(location[-1]).partition(":")
    if colon:  # ``{top_k:5}``
        if _near_endpoint(location):
            value = "…"
        return (
            f"{key}: unknown key; YAML needs a space after the colon: "
            f"{shown_key(f'{name}: {value}')}"
        )
    block: Any = Config
    for part in location[:-1]:
        block = field_block(block, part)
    parent = ".".join(map(str, location[:-1])) or "the top level"
    known = sorted(block.model_fields) if block is not None else ["no such key"]
    return f"{key}: unknown key; {parent} has {', '.join(known)}"


def field_block(block: type[BaseModel] | None, name: object) -> type[BaseModel] | None:
    """The block that is the type of a field, also in an optional or a list; None if there is none.

    A number is a place in a list or a round, which changes no block. A round has the settings of
    the whole configuration, and an override of evaluation has the settings of the overridden block.
    """
    if isinstance(name, int):
        return block
    field = block.model_fields.get(str(name)) if block is not None else None
    if field is None:
        return None
    if block is Config and name == PER_ROUND:
        return Config
    if block is Evaluation and name in OVERRIDDEN:
        return OVERRIDDEN[str(name)]
    return block_of(field.annotation)[0]


def block_of(annotation: Any) -> tuple[type[Block] | None, str]:
    """The block in an annotation, also optional or in a list, and the suffix of its place."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation, ""
    in_list = typing.get_origin(annotation) is tuple
    for argument in typing.get_args(annotation):
        block, suffix = block_of(argument)
        if block is not None:
            return block, "[]" if in_list else suffix
    return None, ""
