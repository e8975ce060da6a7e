"""Values that the shell completes: shipped configurations, stages and settings.

Input: the beginning of a word. Output: the values that start with it; without any, shells complete
file names.
"""

from __future__ import annotations


def configurations(incomplete: str) -> list[str]:
    """Names of shipped configurations."""
    from pipeline.core.shipped import configuration_names

    return [name for name in configuration_names() if name.startswith(incomplete)]


def stages(incomplete: str) -> list[str]:
    """Stages that ``steep run`` takes."""
    from tasks.run import STAGES

    return [name for name in STAGES if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Dotted names of settings that are not in lists."""
    from pipeline.config.lookup import all_blocks

    names = (
        f"{place}.{setting.name}".lstrip(".")
        for block in all_blocks()
        for place in block.places
        for setting in block.settings
        if "[]" not in place
    )
    return sorted(name for name in names if name.startswith(incomplete))
