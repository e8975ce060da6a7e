"""Reading of YAML: files, and single values of the command line.

Input: a path or a text. Output: the values that `yaml.SafeLoader` gives, with three differences:
numbers follow YAML 1.2, so ``1e-5`` is a number, and ``1:30``, ``010`` and dates are texts; JSON's
escapes of characters such as emojis are read; a repeated key is refused.
"""

from __future__ import annotations

import copy
import math
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.input_files import read_text

_MOST_VALUES = 1_000_000  # of a file; aliases of aliases can stand for more than a machine holds


class YamlProblem(ValueError):
    """A refused YAML text; ``line`` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


def read_yaml(path: Path) -> Any:
    """The value of a YAML file.

    Raises ConfigError with ``file:line: problem``, also when the file is missing or unreadable.
    """
    try:
        return parse_yaml(read_text(path))
    except InputError as error:
        raise ConfigError(str(error)) from None
    except YamlProblem as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None


def parse_yaml(text: str, *, comments: bool = True) -> Any:
    """The value of a YAML text; an empty text is None. Raises YamlProblem.

    Without ``comments``, one is refused: a value of the command line would lose its end.
    """
    value = copy.deepcopy(_parsed(text))
    tokens = [] if comments else [*yaml.scan(text)]
    for one, other in pairwise(tokens):
        if "#" in text[one.end_mark.index : other.start_mark.index]:
            raise YamlProblem("# begins a comment in YAML; remove it, or quote the value", 1)
    return value


# PyYAML takes 40 ms for a configuration, which the tasks of a run read again.
@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    try:
        value = yaml.load(text, Loader=_Loader)
        if _size(value, {}) > _MOST_VALUES:
            raise OverflowError
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        cause = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlProblem(f"not valid YAML: {cause}", mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem(f"holds the character U+{error.character:04X}; remove it", line) from None
    except (ValueError, OverflowError, RecursionError, LookupError, AttributeError):
        # PyYAML does not check these, nor a text behind a tag, as in ``!!bool x``.
        raise YamlProblem(
            "not valid YAML: a number, tag, escape, alias or nesting is out of range", 1
        ) from None


def _size(value: Any, known: dict[int, float]) -> float:
    """The number of values with aliases written out, infinite for one inside of itself.

    ``known`` has the sizes of the mappings and lists that were counted.
    """
    if isinstance(value, dict | list) and id(value) not in known:
        known[id(value)] = math.inf
        below = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(one, known) for one in below)
    return known.get(id(value), 1)


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` with the numbers of YAML 1.2, JSON's escapes, and no repeated keys."""

    def construct_scalar(self, node: Any) -> str:
        """A text; two escaped halves of a surrogate pair, as JSON has them, are one character."""
        text = str(super().construct_scalar(node))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def compose_mapping_node(self, anchor: Any) -> Any:
        # Not where mappings are built: there `<<` has put the keys of others among the own ones.
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            merge = key.tag == "tag:yaml.org,2002:merge"
            name, line = key.tag if merge else self.construct_object(key), key.start_mark.line + 1
            if name in lines:
                problem = (
                    f"the key {shown_key(key.value)} is also on line {lines[name]}; remove one"
                )
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[name] = line
        return node


_NUMBERS = {
    "int": r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
_REPLACED = {f"tag:yaml.org,2002:{kind}" for kind in (*_NUMBERS, "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), list("-+.0123456789")
    )
# Which texts are numbers, booleans or null: (tag, pattern) by first character.
RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = _Loader.yaml_implicit_resolvers


def shown_key(key: object) -> str:
    """A key for messages: printable, on one line, and at most 60 characters long."""
    text = str(key)
    text = text if text.isprintable() and text.strip() else ascii(text)
    return text if len(text) <= 60 else f"{text[:57]}..."
