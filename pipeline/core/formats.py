"""The registry of formats: in what form a policy writes its trajectories.

An entry is ``module:class`` of what writes and reads the form (`pipeline.rollout.formats.Format`).
Adding a format takes one entry here and the module that the entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

FORMATS: Mapping[str, str] = {
    "tags": "pipeline.rollout.tags:Tags",
    "tools": "pipeline.rollout.tools:Tools",
}
CALL_TOOLS = frozenset({"tools"})  # whose trajectories are messages, through the chat template
DEFAULT_FORMAT = "tags"

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:  # pydantic and typer refuse any other name
    FormatName = Literal[tuple(FORMATS)]
