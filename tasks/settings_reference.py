"""The page ``docs/settings.md``: every setting with its kind, default, stages and description.

``python -m tasks.settings_reference > docs/settings.md`` (``make reference-pages``) writes it.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.config import Config
from pipeline.config.base import Execution
from pipeline.config.lookup import BlockSettings, Setting, all_blocks
from tasks.base import STAGES, StageTask

_HEAD = """\
# Settings

<!-- Written by `make reference-pages`; a test compares this page with the configuration. -->

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


def stages_reading(dotted: str) -> list[str]:
    """The stages that read the setting ``dotted`` under some configuration, in running order."""
    return [stage for stage, task in STAGES.items() if task.named and _reads(task, dotted)]


def _reads(task: type[StageTask], dotted: str) -> bool:
    names = {*task.reads, *task.reads_at_times}
    return any(dotted == name or dotted.startswith((f"{name}.", f"{name}[].")) for name in names)


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


def setting_stages(dotted: str) -> str:
    """The stages that read a setting, or a setting of the block ``dotted``, in words."""
    if dotted.partition(".")[0] in Config.marked(Execution):
        return "every stage"
    stages = stages_reading(dotted) or [
        stage for stage, task in STAGES.items() if task.named and _reads_below(task, dotted)
    ]
    return ", ".join(stages) or "–"


def _reads_below(task: type[StageTask], block: str) -> bool:
    return any(name.startswith(f"{block}.") for name in (*task.reads, *task.reads_at_times))


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


if __name__ == "__main__":
    print(page(), end="")
