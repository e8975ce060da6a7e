"""Read and check a YAML configuration file.

Input: the path of a file, and overrides ``a.b=value`` of single keys. Output: a `Config`. A file
may name another as its ``base:`` and then holds only the settings that differ: blocks are merged,
values and mappings by number of hops are replaced; ``per_round`` is merged round by round. Errors
name file, key, value, bound and remedy. The name of a variant (`pipeline.config.variants`) is read
as a file.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.base import shown
from pipeline.config.per_round import merged
from pipeline.config.run import Config
from pipeline.config.variants import variants
from pipeline.config.yaml_files import YamlProblem, parse_yaml, read_yaml, shown_key
from pipeline.core.errors import ConfigError
from pipeline.core.shipped import find_configuration, is_file, shipped_configuration

_MOST_BASES = 20


def load(
    path: Path | str,
    overrides: tuple[str, ...] = (),
    data: str | None = None,
    *,
    reference: bool = False,
) -> Config:
    """Read, merge and check a configuration file.

    ``path`` is a file or the name of a shipped configuration (`find_configuration`).
    ``overrides`` are ``key.key=value`` with YAML values; ``data`` sets ``data.root``.
    Raises ConfigError with file, key, value, bound and remedy, also for ``data`` that a generated
    world would leave unread, unless the configuration is only a ``reference`` of another.
    """
    path = find_configuration(path)
    values = _read_with_base(path, ())
    for override in overrides:
        _apply(values, override)
    # Settings with the directory of the data and the name of the run.
    if data is not None and isinstance(values.get("data", {}), dict | None):
        values["data"] = {**(values.get("data") or {}), "root": data}
    values.setdefault("name", path.stem)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        from pipeline.config.explain import explain

        raise ConfigError(explain(path, error)) from None
    if data is not None and config.data.closed_world is not None and not reference:
        raise ConfigError(
            f"{path}: data.closed_world generates the files, so that those in {data} (--data, "
            "DATA=) are not read; choose another --config, or set data.closed_world to null"
        )
    return config


def _read_with_base(path: Path, seen: tuple[str, ...]) -> dict[str, Any]:
    identity = os.path.realpath(path)
    if identity in seen:
        raise ConfigError(
            f"{path}: base names itself through {' -> '.join(seen)}; remove one of them"
        )
    if len(seen) > _MOST_BASES:
        raise ConfigError(f"{path}: is base number {len(seen)} of a chain; shorten the chain")
    values, base = _read_file(path, seen)
    if base is None:
        return values
    below = _read_with_base(base, (*seen, identity))
    below.pop("name", None)
    return merged(below, values)


def _read_file(path: Path, seen: tuple[str, ...]) -> tuple[dict[str, Any], Path | None]:
    """The settings of one file or variant, and the base that it names."""
    if not is_file(path) and (variant := variants().get(str(path))):
        values = copy.deepcopy({"name": str(path), **variant.settings})
        return values, find_configuration(variant.base)
    if not os.path.lexists(path):
        named = "" if not seen else f", which {seen[-1]} names as its base"
        raise ConfigError(
            f"{path}: no such configuration file{named}; `steep init --list` lists the shipped "
            "configurations"
        )
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a YAML file in it")
    values = read_yaml(path)
    if not isinstance(values, dict):
        kind = "nothing" if values is None else type(values).__name__
        raise ConfigError(f"{path}: expected a mapping of settings, got {kind}")
    base = values.pop("base", None)
    if base is None:
        return values, None
    if not isinstance(base, str) or not base or not base.isprintable():
        raise ConfigError(f"{path}: base is {shown(base)}; set it to the name of a YAML file")
    beside = path.parent / base
    if os.path.lexists(beside):
        return values, beside
    return values, shipped_configuration(base) or (Path(base) if base in variants() else beside)


def load_base(path: Path | str, data: str | None = None) -> tuple[Path, Config] | None:
    """The base of a valid configuration (file and `Config`), or None. Arguments as in `load`."""
    _, base = _read_file(find_configuration(path), ())
    return None if base is None else (base, load(base, (), data, reference=True))


def _apply(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    parts = [part.strip() for part in name.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {shown_key(name)}: expected key.key=value")
    where = f"--set {shown_key('.'.join(parts))}"  # without the value, which may be a secret
    *parents, last = map(_as_yaml_key, parts)
    node: dict[Any, Any] = values
    for position, parent in enumerate(parents, start=1):
        child = node.get(parent)
        if not isinstance(child, dict | None):
            above = shown_key(".".join(map(str, parents[:position])))
            kind = "a text" if isinstance(child, str) else shown(child)  # a text may be a secret
            raise ConfigError(f"{where}: {above} is {kind}; set {above} as a whole")
        node[parent] = child = {} if child is None else child
        node = child
    try:
        node[last] = parse_yaml(text, comments=False)
    except YamlProblem as error:
        raise ConfigError(f"{where}: {error}") from None


def _as_yaml_key(part: str) -> str | int:
    """A part of a dotted key as YAML reads it: ``sizes.3`` has the number 3."""
    return int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else part
