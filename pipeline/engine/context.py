"""The argument of every stage function: configuration, input directories and output directory."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter

from pipeline.config import Config
from pipeline.core.errors import InputError
from pipeline.core.formats import FORMATS
from pipeline.core.progress import Progress
from pipeline.engine.progress import ProgressFile
from pipeline.engine.store import StageKey

if TYPE_CHECKING:
    from pipeline.llm.models import Models
    from pipeline.rollout.formats import Format


@dataclass(frozen=True)
class StageContext:
    """Everything that a stage may read.

    ``inputs`` maps an upstream stage's name to its complete directory ("policy" to the directory of
    the policy that samples or is trained; without it the base model samples). ``output`` is a
    temporary directory that the store renames when the stage returns. ``checkpoint_dir`` survives a
    kill and holds checkpoints. ``key`` holds everything that the stage's fingerprint covers; None
    outside a store. ``notes`` are copied into the manifest: choices that the stage made, by name.
    ``facts`` is information from the task besides the settings; it does not enter the fingerprint.
    ``progress`` takes reports on how far the stage is, and ignores them outside a run.
    """

    config: Config
    stage: str
    output: Path
    checkpoint_dir: Path
    inputs: dict[str, Path] = field(default_factory=dict)
    round: int | None = None
    seed: int = 0
    shard: int = 0
    shards: int = 1
    key: StageKey | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress, compare=False)

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # Progress

    @property
    def models(self) -> Models:
        """Opens the language models of the configuration."""
        from pipeline.llm.models import Models

        config = self.config
        files = config.cache_dir, config.hashes_file
        return Models(config.model, config.engine, *files, self.seed, self.shards)

    @property
    def format(self) -> Format:
        """The format in which the policy writes its trajectories."""
        return policy_format(self.config)

    def warn(self, text: str) -> None:
        """Say in the log, in the manifest and in the stage's line what the user must know."""
        print(text, flush=True)
        self.notes.setdefault("warnings", []).append(text)

    @property
    def data_root(self) -> Path:
        """The directory of the data files: the closed world, or ``data.root``."""
        return self.inputs.get("world") or Path(self.config.data.root or ".")

    def to_json(self) -> dict[str, Any]:
        """The context as JSON values, for a file that another process reads."""
        values: dict[str, Any] = _adapter().dump_python(self, mode="json", exclude={"progress"})
        if isinstance(self.progress, ProgressFile):
            values["progress"] = str(self.progress.path)
        return values

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageContext:
        """The context of `to_json`; fields with defaults may be missing."""
        path = value.get("progress")
        progress = Progress() if path is None else ProgressFile(Path(path))
        return _adapter().validate_python({**value, "progress": progress})

    def resolve(self, path: str) -> Path:
        """A data path: absolute, else below the closed world or ``data.root``; it may be a glob.

        Raises InputError when the file does not exist.
        """
        root = self.data_root
        file = root / path
        if not file.exists() and not glob.has_magic(path):
            hint = (
                ""
                if self.config.data.root or "world" in self.inputs
                else "; pass --data DIR (DATA=DIR)"
            )
            raise InputError.at(file, f"no such file{hint} (looked below {root})")
        return file


def policy_format(config: Config) -> Format:
    """The format of a configuration, with the tools of the user's file.

    Raises ConfigError where that file fails.
    """
    from pipeline.rollout.conversations.steps import load_tools
    from pipeline.rollout.grammars import grammar

    load_tools(config.tools)
    module, _, name = FORMATS[config.format].partition(":")
    settings = grammar(config.grammar), config.model.thinking, config.sampling.malformed_calls
    made: Format = getattr(import_module(module), name)(*settings)
    return made


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[StageContext]:
    return TypeAdapter(StageContext)
