"""A resolved configuration as YAML in which comments mark what differs from defaults and from its base.

Input: a checked `Config`, and that of its ``base:`` file. Output: YAML that reads back as the same
configuration, and a list of the differing settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config.base import Block
from pipeline.config.run import Config
from pipeline.config.values import shown
from pipeline.config.writing import yaml_text

ABSENT: Any = object()  # stands for a default or a base that there is not
_INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """A setting that is no block, or a block that is null; ``depth`` is the number of blocks above."""

    key: str
    depth: int
    value: Any
    default: Any
    base: Any

    @property
    def changed(self) -> bool:
        """Whether it differs from its default, or from the base file."""
        return self.marks != ""

    @property
    def marks(self) -> str:
        """What it differs from, in words; empty where it does not."""
        before = [
            f"{name}: {_words(value)}"
            for name, value in (("base", self.base), ("default", self.default))
            if value is not ABSENT and value != self.value
        ]
        return "; ".join(before)


def entries(config: Config, base: Config | None) -> list[Entry]:
    """All settings in the order of a file, with defaults and the values of the base file."""
    return list(_entries(config, ABSENT, ABSENT if base is None else base, "", 0))


def _entries(block: Block, defaults: Any, base: Any, above: str, depth: int) -> Iterator[Entry]:
    for name, field in type(block).model_fields.items():
        value, key = getattr(block, name), f"{above}{name}"
        default = ABSENT
        if isinstance(defaults, Block):
            default = getattr(defaults, name)
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
        before = getattr(base, name) if isinstance(base, Block) else ABSENT
        if isinstance(value, Block):
            yield from _entries(value, default, before, f"{key}.", depth + 1)
        else:
            yield Entry(key, depth, _plain(value), _plain(default), _plain(before))


def _plain(value: Any) -> Any:
    """A value as YAML has it: blocks as mappings, tuples as lists."""
    if isinstance(value, Block):
        return {key: _plain(item) for key, item in value.model_dump().items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _words(value: Any) -> str:
    if (
        isinstance(value, list)
        and value
        and not any(isinstance(item, dict | list) for item in value)
    ):
        return f"[{', '.join(map(shown, value))}]"
    return shown(value)


def as_text(chosen: list[Entry]) -> str:
    """The settings as YAML with a comment on each that differs; the blocks above each are written too."""
    lines: list[str] = []
    open_blocks: list[str] = []
    for entry in chosen:
        *blocks, name = entry.key.split(".")
        common = 0
        while common < min(len(blocks), len(open_blocks)) and blocks[common] == open_blocks[common]:
            common += 1
        lines += [f"{_INDENT * depth}{blocks[depth]}:" for depth in range(common, len(blocks))]
        open_blocks = blocks
        written = yaml_text({name: entry.value}).splitlines()
        comment = f"# {entry.marks}" if entry.changed else ""
        indent = _INDENT * entry.depth
        if comment and len(written) == 1:
            written = [f"{written[0]}  {comment}"]
        elif comment:
            lines.append(indent + comment)
        lines += [f"{indent}{line}" if line else "" for line in written]
    return "\n".join(lines) + "\n" if lines else ""
