"""The files of a policy's directory: ``adapter/``, and ``lineage.json``, which names it and its origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json

LINEAGE = "lineage.json"
ADAPTER_SETTINGS = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
UNTRAINED = "untrained"  # the method in the lineage of the base model, which has no adapter


def adapter_directory(directory: Path) -> Path:
    """The adapter of a policy's directory; a bare adapter, as PEFT writes it, is its own directory."""
    return directory if (directory / ADAPTER_SETTINGS).is_file() else directory / "adapter"


def lineage_fields(directory: Path) -> dict[str, Any]:
    """The content of ``lineage.json``, which names at least the ``policy``.

    Raises InputError when the file is missing, malformed, or names no policy.
    """
    path = directory / LINEAGE
    if not path.exists():
        raise InputError.at(
            path, None, "no such file, so the directory holds no policy; train it again"
        )
    fields: dict[str, Any] = read_json(path)
    if not isinstance(fields.get("policy"), str):
        raise InputError.at(path, None, "malformed lineage of a policy: it names no policy")
    return fields
