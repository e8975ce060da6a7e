"""Settings of the tiny reader that a larger base model keeps: its rates, and its prompt.

Input: settings, and what the stages open. Output: sentences with the settings to write instead, of
the preset of the base model. The tiny reader's settings are those of ``configs/embedded.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from pipeline.config import Config, load
from pipeline.config.evaluation import BASE
from pipeline.config.presets import format_prompt, preset_of
from pipeline.engine.opened import Opened, Training

_RATES = ("learning_rate", "eta", "eta_of")


def kept_settings(settings: Config, opened: Iterable[Opened]) -> Iterator[tuple[bool, str]]:
    """Whether the base model cannot learn with it, and a sentence, for each kept setting.

    It cannot learn with learning rates that destroy it, nor with a prompt without the format that
    an untrained policy 0 has to write.
    """
    preset, _, why = preset_of(settings.model.base)
    trained = {one.block for one in opened if isinstance(one, Training)}
    if not preset.settings or not trained:
        return
    tiny = load("embedded")
    for block in ("sft", "dpo"):
        own: Any = getattr(settings, block)
        advised = {name: value for name, value in preset.settings[block].items() if name in _RATES}
        kept = [
            name for name in advised if getattr(own, name) == getattr(getattr(tiny, block), name)
        ]
        fatal = "learning_rate" in kept
        if block in trained and (fatal or "eta" in kept):
            name = f"{block}.{'learning_rate' if fatal else 'eta'}"
            value = own.learning_rate if fatal else list(own.eta)
            instead = yaml.safe_dump(advised, default_flow_style=True, sort_keys=False).strip()
            yield (
                fatal,
                f"{name} is {value}, as for the tiny reader, and model.base is "
                f"{settings.model.base} ({why}); write {block}: {instead}",
            )
    if settings.prompt == tiny.prompt:
        name, _ = format_prompt(settings.grammar, settings.format)
        yield (
            settings.start == BASE,
            f"prompt.system is {settings.prompt.system!r}, as for the tiny reader, and does not "
            f"describe the format of {settings.grammar}; write it as {name} does (steep config "
            f"show --config {name})",
        )
