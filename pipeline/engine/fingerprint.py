"""Values that enter a task's fingerprint: settings, and the identity of files and models.

Input: a configuration and the names of its settings, or the name of a model. Output: JSON values
for `pipeline.engine.store.StageKey`, and for the manifest the settings that say how work is
executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.config import Block, Config
from pipeline.config.base import (
    Execution,
    execution_values,
)
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.model_files import PACKAGE, find_model


@lru_cache(maxsize=8)
def content_hashes(memory: Path) -> ContentHashes:
    """Content hashes that are remembered in the file ``memory``."""
    return ContentHashes(memory)


def content_of(settings: Config, files: Mapping[str, Path | str]) -> dict[str, str]:
    """The content hashes of files and model directories; other identities are unchanged.

    Raises InputError when a file does not exist.
    """
    hashes = content_hashes(settings.hashes_file)
    content = {
        name: hashes.of(path) if isinstance(path, Path) else path for name, path in files.items()
    }
    hashes.save()
    return content


def select(settings: Block, names: tuple[str, ...]) -> dict[str, Any]:
    """The named blocks or fields as a fingerprint holds them, by dotted name.

    Fields that only say how work is executed are left out (`pipeline.config.base`).
    """
    chosen: dict[str, Any] = {}
    for dotted in names:
        *parents, name = dotted.split(".")
        deciding = reduce(getattr, parents, settings).deciding(name)
        if name in deciding:
            chosen[dotted] = deciding[name]
    return chosen


def select_execution(settings: Block, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings that say how work is executed: fields that `select` leaves out, by dotted name.

    They always include the settings of the whole run (``workers``, ``cache_dir``, …). A name whose
    block is null has none.
    """
    run = type(settings).marked(Execution)
    everything = execution_values(settings)
    return {
        dotted: value
        for dotted, value in everything.items()
        if dotted.partition(".")[0] in run
        or any(dotted == name or dotted.startswith(f"{name}.") for name in names)
    }


def base_model_files(settings: Config) -> dict[str, Path | str]:
    """The identity of the base model, and of the configured chat template."""
    files = {"base model": model_identity(settings.model.base)}
    if settings.model.chat_template is not None:
        from pipeline.llm.tokenizer import template_identity

        files["chat template"] = template_identity(settings.model.chat_template)
    return files | tool_files(settings)


def roll_out_files(settings: Config) -> dict[str, Path | str]:
    """The models that roll-outs read, except the policy's adapter."""
    files = base_model_files(settings)
    reranker = settings.retrieval.reranker.model
    if reranker:
        files["reranker"] = model_identity(reranker)
    return files


def tool_files(settings: Config) -> dict[str, Path | str]:
    """The user's file of tools, if there is one."""
    return {} if settings.tools is None else {"tools": Path(settings.tools)}


def model_identity(name: str) -> Path | str:
    """The identity of a model: its directory if it is a local or shipped one, else its hub name.

    ``package:NAME`` is a model inside an installed package, identified by that package's version.
    """
    if name.startswith(PACKAGE):
        package = name.removeprefix(PACKAGE)
        try:
            return f"{package}=={metadata.version(package.replace('_', '-'))}"
        except metadata.PackageNotFoundError:
            return f"{package} (not installed)"
    path = Path(find_model(name))
    looks_local = path.is_absolute() or name.startswith(".") or path.parts[:1] == ("data",)
    return path if path.exists() or looks_local else name
