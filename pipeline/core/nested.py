"""Nested mappings as flat ones, with dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for every value inside nested mappings, in order; tuples become lists.

    ``prefix`` is the name of ``value`` itself. An empty mapping has no values.
    """
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from leaves(below, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value
