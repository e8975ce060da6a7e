"""Files of questions as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_questions(folder: Path, *records: dict[str, Any], name: str = "questions.jsonl") -> Path:
    """Write one record on each line; returns the file."""
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
