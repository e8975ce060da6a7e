"""Write a configuration as YAML, and list the settings that differ from its base.

Input: a checked `Config`, and the `Config` of its ``base:`` file. Output: YAML that
`pipeline.config.load` reads back as the same configuration, with comments on settings that differ
from their default or from the base; and the differing settings of a run. A configuration is
compared with the file that it names as its ``base``. Without a base, a shipped file is compared
with itself, so that overrides remain, and any other file with the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.base import Block, shown
from pipeline.config.reading import load, load_base
from pipeline.config.run import Config
from pipeline.config.yaml_files import RESOLVERS
from pipeline.core.shipped import CONFIGURATIONS, find_configuration

ABSENT: Any = object()  # stands for a missing default or a missing base
_INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """A setting that is not a block, or is a null block; ``depth`` counts the blocks above it."""

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
        """Names the values from which it differs; empty if it does not differ."""
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
    """The settings as YAML, in their blocks, with a comment on each differing setting."""
    lines: list[str] = []
    open_blocks: list[str] = []
    for entry in chosen:
        *blocks, name = entry.key.split(".")
        common = 0
        while common < min(len(blocks), len(open_blocks)) and blocks[common] == open_blocks[common]:
            common += 1
        lines += [f"{_INDENT * depth}{blocks[depth]}:" for depth in range(common, len(blocks))]
        open_blocks = blocks
        lines_of = yaml_text({name: entry.value}).split("\n")[:-1]
        written = [line for line in lines_of if line != "..."]  # the end of the document
        comment = f"# {entry.marks}" if entry.changed else ""
        indent = _INDENT * entry.depth
        if comment and len(written) == 1:
            written = [f"{written[0]}  {comment}"]
        elif comment:
            lines.append(indent + comment)
        lines += [f"{indent}{line}" if line else "" for line in written]
    return "\n".join(lines) + "\n" if lines else ""


DEFAULTS = "the defaults"


def differing_settings(
    path: Path | str, overrides: tuple[str, ...] = (), data: str | None = None
) -> dict[str, Any]:
    """``reference`` (a file name or `DEFAULTS`) and ``settings`` (``key``, ``value``, ``before``).

    Left out are the run's name, and settings that only say how work is executed. A setting whose
    block the reference lacks has no ``before``, and is listed if it differs from its default. Takes
    the arguments of `load`, and raises its errors.
    """
    config = load(path, overrides, data)
    reference, before = _reference(find_configuration(path), data)
    rows = []
    for entry in entries(config, before):
        old = entry.default if before is None else entry.base
        compared = entry.default if old is ABSENT else old
        if compared == entry.value or entry.key == "name" or not decides(entry.key):
            continue
        row = {"key": entry.key, "value": entry.value}
        rows.append(row if old is ABSENT else {**row, "before": old})
    return {"reference": reference, "settings": rows}


def _reference(path: Path, data: str | None) -> tuple[str, Config | None]:
    if base := load_base(path, data):
        return base[0].name, base[1]
    if path.resolve().is_relative_to(CONFIGURATIONS.resolve()):
        return path.name, load(path, (), data, reference=True)
    return DEFAULTS, None


def decides(key: str) -> bool:
    """Whether a setting can decide results."""
    from pipeline.config.lookup import find_field

    return find_field(key).kind != "execution"


_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """`yaml.SafeDumper` that quotes texts which YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = {
    first: [*RESOLVERS.get(first, []), *yaml.SafeDumper.yaml_implicit_resolvers.get(first, [])]
    for first in {*RESOLVERS, *yaml.SafeDumper.yaml_implicit_resolvers}
}


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    if re.search("[\u2028\u2029]", text):  # line breaks of YAML 1.1, which indentation would follow
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def as_yaml(config: Config) -> str:
    """The YAML text of a configuration, which holds no secrets, as configurations have none."""
    # Defaults are not validated: a default of 1 in a field of floats becomes 1.0 when it is read
    # back.
    values = Config.model_validate(config.model_dump()).model_dump()
    return yaml_text(values)


def yaml_text(values: dict[str, Any]) -> str:
    """The YAML text of settings."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
