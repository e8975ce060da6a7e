"""What one part of the suite found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """Number of cases of a part, its facts, and one line per problem; no problems is success."""

    part: str
    cases: int = 0
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
