"""The registry of formats: in what form a policy writes its trajectories.

An entry names the class that writes and reads the form (`pipeline.rollout.formats.Format`). Adding
a format takes one entry here and the module that the entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """Facts about a format that the configuration and the commands need before its code."""

    implementation: str
    """``module:class`` of the format."""
    calls_tools: bool = False
    """Whether trajectories are messages with tool calls, through the chat template."""


FORMATS: Mapping[str, FormatEntry] = {
    "tags": FormatEntry("pipeline.rollout.tags:Tags"),
    "tools": FormatEntry("pipeline.rollout.tools:Tools", calls_tools=True),
}
DEFAULT_FORMAT = "tags"

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:  # pydantic and typer refuse any other name
    FormatName = Literal[tuple(FORMATS)]
