"""Adds the page *Settings* to the site: kind, default, stages and description of each setting."""

from __future__ import annotations

import json
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from pipeline.config.lookup import BlockSettings, Setting, all_blocks
from tasks.settings_reference import setting_stages, stages_reading

_HEAD = """\
# Settings

This page lists every setting, block by block, in the order of a configuration file. `steep run
--set block.setting=value` overrides one. The column *kind* says what a change does:

| kind | meaning |
|---|---|
| result | The setting decides results. It is in the fingerprint of each stage that reads it, so a \
change reruns these stages and what follows from them. |
| execution | The setting says how work is executed, such as a batch size or a device. It \
is in no fingerprint and no cache key, so a change reruns nothing. The manifest of a stage records \
it, and `steep status --why STAGE` shows a difference. \
[Reproducibility](reproducibility.md#execution-settings) says which of them keep results \
equal to the byte. |
| indirect | The setting decides results through something else that fingerprints hold, \
such as the content of the files that it names. |

The column *read by* names the stages that read the setting under some configuration. A stage
reads only the settings that its method and its other settings need.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(_table(block) for block in all_blocks() if block.settings)])


def _table(block: BlockSettings) -> str:
    """One block. Where it is used at several places, the stages are listed by place."""
    title = " and ".join(f"`{place}`" for place in block.places) if block.places != ("",) else ""
    shared = len(block.places) > 1
    if shared:
        title = f"{block.block.__name__}"
    lines = [f"## {title or 'The run'}", "", _summary(block), ""]
    if shared:
        lines += [f"- `{place}`: {_of_place(block, place)}" for place in block.places] + [""]
        lines += ["| setting | default | kind | description |", "|---|---|---|---|"]
    else:
        lines += ["| setting | default | kind | read by | description |", "|---|---|---|---|---|"]
    for setting in block.settings:
        cells = [f"`{setting.name}`", _shown(setting), setting.kind, _description(setting)]
        if not shared:
            cells.insert(3, setting_stages(f"{block.places[0]}.{setting.name}".lstrip(".")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _summary(block: BlockSettings) -> str:
    text = (block.block.__doc__ or "").strip()
    first = " ".join(text.split("\n\n")[0].split())
    return first.replace("``", "`")


def _of_place(block: BlockSettings, place: str) -> str:
    stages: dict[str, None] = {}
    for setting in block.settings:
        stages |= dict.fromkeys(stages_reading(f"{place}.{setting.name}"))
    return f"read by {', '.join(stages)}"


def _shown(setting: Setting) -> str:
    if setting.default is ...:
        return "required"
    return f"`{_as_yaml(setting.default)}`"


def _as_yaml(value: Any) -> str:
    return str(value) if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _description(setting: Setting) -> str:
    text = setting.description.replace("``", "`").replace("|", "\\|")
    if not setting.values:
        return text
    return f"{text} ({', '.join(f'`{value}`' for value in setting.values)})"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site; mkdocs calls this hook (``mkdocs.yml``)."""
    files.append(File.generated(config, "settings.md", content=page()))
    return files
