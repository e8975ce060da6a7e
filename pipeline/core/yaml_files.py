"""Strict reading of YAML: files, and single values of the command line.

Input: a path or a text. Output: mappings with text or whole numbers as keys, lists, texts, numbers,
booleans and None. Numbers are those of YAML 1.2, so ``1e-5`` is a number, ``1:30`` and ``010`` are
texts, and a date is a text. Refused are repeated keys, other kinds of keys, tags such as ``!!int``,
several documents, integers beyond 64 bits, and documents that are nested too deeply or are too large
after their aliases are expanded.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.error import Mark

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.input_files import STDIN, read_text

MAX_BYTES = 2**18
MAX_DEPTH = 50  # nesting of mappings and lists
MAX_NODES = 20_000  # values and keys, aliases expanded
_INT64 = range(-(2**63), 2**63)
_PREFIX = "tag:yaml.org,2002:"


class YamlProblem(ValueError):
    """A YAML text is refused; ``line`` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


def read_yaml(path: Path) -> Any:
    """The value of a YAML file.

    Raises ConfigError with ``file:line: problem``, also when the file is missing or unreadable.
    """
    try:
        mode = path.stat().st_mode
        size = path.stat().st_size
    except (OSError, ValueError):
        mode = size = 0  # `read_text` says why
    if str(path) == STDIN or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ConfigError(f"{path}: not a YAML file; name a file")
    if size > MAX_BYTES:
        raise ConfigError(f"{path}: has {size:,} bytes; expected at most {MAX_BYTES:,}; shorten it")
    try:
        return parse_yaml(read_text(path))
    except InputError as error:
        raise ConfigError(str(error)) from None
    except YamlProblem as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; an empty text is None. Raises YamlProblem.

    The message of YamlProblem repeats keys and no values, which may be secrets.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        name = f"U+{error.character:04X}"
        raise YamlProblem(f"holds the character {name}; remove it", line) from None
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        if isinstance(error, _Refused):
            raise YamlProblem(str(error.problem), mark.line + 1) from None
        cause = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlProblem(f"not valid YAML: {cause}", mark.line + 1) from None
    except (ValueError, OverflowError):
        # PyYAML converts "\UFFFFFFFF" and the version of a %YAML line without a check.
        problem = "not valid YAML: an escape or a number is out of range"
        raise YamlProblem(problem, loader.get_mark().line + 1) from None
    finally:
        loader.dispose()


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that this module refuses."""

    def __init__(self, problem: str, mark: Mark | None) -> None:
        super().__init__(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` with YAML 1.2 numbers, limits, and a check of keys and tags."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._deepest = 0  # depth of the deepest node so far
        self._nodes = 0
        # Size and height of complete nodes by anchor; an alias counts as often as it is used.
        self._anchored: dict[str, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node as PyYAML does, and count its size and depth."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchored:
                raise _Refused("an alias names no complete value before it; write it out", mark)
            size, height = self._anchored[event.anchor]
            self._count(size, self._depth + height, mark)
            return super().compose_node(parent, index)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _Refused("tags such as !!int are not supported; remove the tag", mark)
        before, outer_deepest = self._nodes, self._deepest
        self._depth += 1
        self._deepest = self._depth
        self._count(1, self._depth, mark)
        node = super().compose_node(parent, index)
        if event.anchor is not None:
            self._anchored[event.anchor] = (
                self._nodes - before,
                self._deepest - self._depth + 1,
            )
        self._deepest = max(self._deepest, outer_deepest)
        self._depth -= 1
        return node

    def _count(self, nodes: int, depth: int, mark: Mark) -> None:
        self._nodes += nodes
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            raise _Refused(
                f"mappings and lists are nested more than {MAX_DEPTH} deep; flatten them", mark
            )
        if self._nodes > MAX_NODES:
            raise _Refused(f"the document has more than {MAX_NODES:,} values; shorten it", mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping and check its keys, before merge keys (``<<``) are expanded."""
        mapping = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key_node, _ in mapping.value:
            key = self._key(key_node)
            line = key_node.start_mark.line + 1
            if key in lines:
                problem = f"the key {shown_key(key)} is also on line {lines[key]}; remove one"
                raise _Refused(problem, key_node.start_mark)
            lines[key] = line
        return mapping

    def _key(self, node: yaml.Node) -> str | int:
        kind = node.tag.removeprefix(_PREFIX)
        if kind == "int":
            return self.construct_yaml_int(node)
        if kind not in ("str", "merge"):
            problem = "a key is a list or a mapping; expected a name"
            if isinstance(node, yaml.ScalarNode):
                problem = f"the key {shown_key(node.value)} is read as {kind}; put it in quotes"
            raise _Refused(problem, node.start_mark)
        return str(node.value)

    def construct_yaml_int(self, node: Any) -> int:
        """A whole number of at most 64 bits."""
        digits = str(node.value).replace("_", "")
        if len(digits) <= 20:  # enough for every 64-bit number; int() refuses thousands of digits
            value = int(digits, 16 if "x" in digits else 10)
            if value in _INT64:
                return value
        problem = f"a whole number has {len(digits):,} digits, which 64 bits cannot hold"
        raise _Refused(f"{problem}; use a smaller one", node.start_mark)


def shown_key(key: object) -> str:
    """A key for messages: printable, on one line, and at most 60 characters long."""
    text = str(key)
    text = text if text.isprintable() and text.strip() else ascii(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


_KINDS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (
        r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        list("yYnNtTfFoO"),
    ),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    "merge": (r"<<", ["<"]),
}
_Loader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in _KINDS.items():
    _Loader.add_implicit_resolver(_PREFIX + _kind, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_PREFIX + "int", _Loader.construct_yaml_int)
# Which texts are numbers, booleans or null: (tag, pattern) by first character.
RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = _Loader.yaml_implicit_resolvers
