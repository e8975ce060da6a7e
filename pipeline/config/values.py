"""The types of settings: bounded numbers, lists, texts and addresses."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.core.text import without_keys

# Every numeric field has a lower and an upper bound. The upper bounds are far above all useful values;
# they keep counts within 32 bits, and loops over rounds, shards and processes finite.
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Few = Annotated[int, Field(ge=1, le=1000)]  # of processes, devices and rounds
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Above0 = Annotated[float, Field(gt=0, le=1e6)]
Temperature = Annotated[float, Field(ge=0, le=100)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Epochs = Annotated[float, Field(gt=0, le=10_000)]

NotEmpty = Annotated[str, Field(min_length=1)]
Item = TypeVar("Item")
# Blocks are strict, so that true and "3" are no numbers. Tuples are not: YAML and JSON have only lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
AtLeastOne = Annotated[tuple[Item, ...], Field(strict=False, min_length=1)]


def _file_name_lengths(value: str) -> str:
    longest = max(len(part.encode("utf-8", "replace")) for part in value.split("/"))
    if longest > 255:
        raise ValueError(
            f"a file name in it has {longest} bytes; file systems allow 255; shorten it"
        )
    return value


# A path, or the name of a model, which may be a path.
PathOrName = Annotated[
    str, Field(min_length=1, max_length=1000), AfterValidator(_file_name_lengths)
]


def _path_unless_template(value: str) -> str:
    return value if "{" in value else _file_name_lengths(value)


# The path of a Jinja template, or the template, which holds a brace.
PathOrTemplate = Annotated[str, Field(min_length=1), AfterValidator(_path_unless_template)]


def with_numbers_as_keys(value: object, kind: str) -> object:
    """A mapping with whole numbers as keys, which are texts in JSON; ``kind`` names a key in messages."""
    if not isinstance(value, dict):
        return value
    keys = [int(key) if re.fullmatch(r"[1-9]\d{0,3}", str(key)) else key for key in value]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{kind} is there twice, in quotes and without; remove one")
    return dict(zip(keys, value.values(), strict=True))


def _hops_as_keys(value: object) -> object:
    return with_numbers_as_keys(value, "a number of hops")


Hops = Annotated[int, Field(ge=1, le=99)]
SizesByHops = Annotated[dict[Hops, Count], BeforeValidator(_hops_as_keys)]

KEY_REMEDY = "put the key into an environment variable and name that variable in api_key_env"
_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def check_texts(value: Any) -> None:
    """Raise ValueError for control characters, lone surrogates and API keys in nested values."""
    if isinstance(value, str) and (found := _CONTROL.search(value)):
        raise ValueError(f"the text holds the character U+{ord(found[0]):04X}; remove it")
    if isinstance(value, str) and without_keys(value) != value:
        raise ValueError(f"the text looks like an API key; {KEY_REMEDY}")
    if isinstance(value, dict):
        check_texts((*value, *value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            check_texts(item)


def check_address(value: str, example: str, remedy: str) -> None:
    """Raise ValueError, whose message never has the address, unless it has only host and path."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half an IPv6 address
        usable = False
    if not usable or re.search(r"[\s\\]", value):
        raise ValueError(f"expected an address such as {example}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(f"the address has more than host and path; {remedy}")


def shown(value: object) -> str:
    """A value for messages, as YAML writes it: one line, at most about 60 characters.

    Mappings and lists are named by their kind.
    """
    if isinstance(value, dict | list | tuple):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
