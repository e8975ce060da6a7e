"""JSON schemas that a client or a log brings: checked once, then compared with values.

Input: schemas of tools and answers. Output: an InputError with the place of a fault, and the reason
why a value does not fit. Nothing is fetched: a ``$ref`` finds parts of its own schema alone. What
one check may do is bounded, because a schema of ten lines can lead in a circle, to itself two to
the power of thirty times, or to a pattern without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from pipeline.core.errors import InputError

_MOST_REFERENCES = 10_000  # that one check follows
_LONGEST_MATCH = 1.0  # seconds of a pattern
_UNEVALUATED = "unevaluatedProperties is not supported; use additionalProperties"
_left: ContextVar[Iterator[int]] = ContextVar("_left")


class _Endless(Exception):
    """A schema that leads to itself, or to too many parts."""


def check_schema(schema: Any, place: str) -> None:
    """Raise InputError, which begins with the ``place`` of the fault, for an unusable schema."""
    from jsonschema import SchemaError
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    if not isinstance(schema, dict) or not isinstance(schema.get("$schema", ""), str):
        raise InputError(f"{place}: expected a JSON schema, which is an object")
    reference = ""
    try:
        validator = _validator(schema)
        validator.check_schema(schema)
        specification = specification_with(validator.META_SCHEMA["$schema"])
        pending = [(specification.create_resource(schema), validator._resolver)]
        while pending:
            part, resolver = pending.pop()
            if isinstance(part.contents, dict) and "unevaluatedProperties" in part.contents:
                raise InputError(f"{place}: {_UNEVALUATED}")
            if isinstance(part.contents, dict) and "$ref" in part.contents:
                reference = part.contents["$ref"]
                resolver.lookup(reference)
                for _ in validator.evolve(schema=part.contents, _resolver=resolver).iter_errors({}):
                    pass  # raises _Endless
            pending += [(sub, resolver.in_subresource(sub)) for sub in part.subresources()]
    except InputError:
        raise
    except SchemaError as error:
        at = ".".join([place, *map(str, error.absolute_path)])
        raise InputError(f"{at}: {error.message:.300}") from None
    except (_Endless, RecursionError):
        raise InputError(f"{place}: it is too deep, or its references have no end") from None
    except (Unresolvable, ValueError, TypeError, AttributeError):
        raise InputError(
            f"{place}: it has no {reference!r:.100}; a $ref names a part of the same schema, such "
            "as #/$defs/NAME"
        ) from None


def schema_problem(schema: Any, value: Any) -> str | None:
    """Why a value does not fit a schema, which may be unchecked; None if it does."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(schema).iter_errors(value))
    except Exception as error:  # noqa: BLE001 - an unchecked schema may lead anywhere
        return f"their schema cannot be evaluated ({type(error).__name__})"
    return None if error is None else str(error.message)


def _validator(schema: Any) -> Any:
    from jsonschema import Draft202012Validator, validators
    from jsonschema_specifications import REGISTRY

    _left.set(iter(range(_MOST_REFERENCES)))
    kind = validators.validator_for(schema, default=Draft202012Validator)
    return _bounded(kind)(schema, registry=REGISTRY)


@lru_cache
def _bounded(kind: Any) -> Any:
    """A class of validators that count references, and bound the time of patterns."""
    from jsonschema import validators

    def counted(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def checked(*arguments: Any) -> Iterator[Any]:
            if next(_left.get(), None) is None:
                raise _Endless
            yield from check(*arguments) or ()

        return checked

    names = {"$ref", "$dynamicRef", "$recursiveRef"} & kind.VALIDATORS.keys()
    references = {name: counted(kind.VALIDATORS[name]) for name in names}

    def additional(validator: Any, extra: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        if patterns and isinstance(value, dict):
            value = {k: v for k, v in value.items() if not any(_found(p, k) for p in patterns)}
        others = {name: part for name, part in schema.items() if name != "patternProperties"}
        yield from kind.VALIDATORS["additionalProperties"](validator, extra, value, others) or ()

    patterns = {"pattern": _pattern, "patternProperties": _by_pattern}
    rest = {"additionalProperties": additional, "unevaluatedProperties": _unevaluated}
    return validators.extend(kind, {**references, **patterns, **rest})


def _found(pattern: str, text: str) -> bool:
    import regex

    # Python's own module has no limit of time, and would stop every thread.
    return regex.search(pattern, text, timeout=_LONGEST_MATCH) is not None


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not _found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _by_pattern(validator: Any, parts: Any, value: Any, _: Any) -> Iterator[Any]:
    for name, held in value.items() if isinstance(value, dict) else ():
        for pattern, part in parts.items():
            if _found(pattern, name):
                yield from validator.descend(held, part, path=name, schema_path=pattern)


def _unevaluated(*_: Any) -> Iterator[Any]:
    # jsonschema evaluates it with patterns that have no limit of time.
    raise InputError(_UNEVALUATED)
