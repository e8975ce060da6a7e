"""Adds the page *Settings* to the site: kind, default, stages and description of each setting."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any, Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import tasks as tasks  # declares the stages
from pipeline.config.lookup import BlockSettings, Setting, all_blocks
from pipeline.engine.settings_reference import setting_stages

_HEAD = """\
# Settings

All settings, block by block, in the order of a configuration file. `steep run --set \
block.setting=value` overrides one.

- A setting without a mark decides results: it is in the fingerprint of each stage that reads it \
under some configuration, so a change reruns these stages and those after them.
- *execution*: it says how work is executed, such as a batch size or a device. A change reruns \
nothing; [reliability](reliability.md#execution-settings) says which results it can move.
- *indirect*: it decides results through something else in fingerprints, such as the content of \
a file that it names.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(_table(block) for block in all_blocks() if block.settings)])


def _table(block: BlockSettings) -> str:
    """One block, the stages that read it, and its settings."""
    title = "The run" if block.places == ("",) else block.block.__name__
    if len(block.places) == 1 and block.places[0]:
        title = f"`{block.places[0]}`"
    lines = [f"## {title}", "", _summary(block), ""]
    if readers := _readers(block):
        lines += [*readers, ""]
    lines += ["| setting | default | description |", "|---|---|---|"]
    for setting in block.settings:
        mark = "" if setting.kind == "result" else f" *{setting.kind}*"
        lines.append(f"| `{setting.name}`{mark} | {_shown(setting)} | {_description(setting)} |")
    return "\n".join([*lines, ""])


def _readers(block: BlockSettings) -> list[str]:
    """The stages that read the block at each of its places; settings with other stages by name."""
    places: dict[str, list[str]] = {}
    for place in block.places:
        settings: dict[str, list[str]] = {}
        for setting in block.settings:
            if setting.kind == "result":
                stages = setting_stages(f"{place}.{setting.name}".lstrip("."))
                settings.setdefault(stages, []).append(f"`{setting.name}`")
        rows = sorted(settings.items(), key=lambda row: -len(row[1]))
        parts = [stages if not row else f"{', '.join(names)} by {stages}"
                 for row, (stages, names) in enumerate(rows)]  # fmt: skip
        places.setdefault("; ".join(parts), []).append(f"`{place}`")
    found = [(names, text) for text, names in places.items() if text]
    if len(block.places) == 1:
        return [f"Read by {text}." for _, text in found]
    return [f"- {', '.join(names)}: read by {text}" for names, text in found]


def _summary(block: BlockSettings) -> str:
    text = (block.block.__doc__ or "").strip()
    first = " ".join(text.split("\n\n")[0].split())
    return first.replace("``", "`")


def _shown(setting: Setting) -> str:
    if setting.default is ...:
        return "required"
    return f"`{_as_yaml(setting.default)}`"


def _as_yaml(value: Any) -> str:
    return str(value) if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _description(setting: Setting) -> str:
    text = (setting.info.description or "").replace("``", "`").replace("|", "\\|")
    values = ", ".join(f"`{value}`" for value in _literals(setting.info.annotation))
    return f"{text} ({values})" if values else text


def _literals(annotation: Any) -> Iterator[str]:
    """The values that a type lists."""
    if typing.get_origin(annotation) is Literal:
        yield from map(str, typing.get_args(annotation))
    else:
        for argument in typing.get_args(annotation):
            yield from _literals(argument)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site; mkdocs calls this hook (``mkdocs.yml``)."""
    files.append(File.generated(config, "settings.md", content=page()))
    return files
