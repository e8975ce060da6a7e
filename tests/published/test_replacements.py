"""A stand-in run differs from its published configuration only in the settings of one table."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pipeline import config
from pipeline.core.input_files import leaves
from pipeline.core.shipped import CONFIGURATIONS
from tests.published.replacements import (
    MODELS,
    PUBLISHED,
    REPLACEMENTS,
    Places,
    published,
    stand_in,
)
from tests.published.runs import StandInRun, StandIns

# Files that are no published setting: the embedded runs, two small ones, and cards of 24 GB.
OTHERS = ("embedded", "musique-sample", "real-passages", "single-gpu")


def resolved(name: str, work: Path) -> dict[str, Any]:
    """All settings of a stand-in run, by dotted name, as ``steep`` loads them."""
    stand_ins = StandIns(Path("/data"), Path("/models"))
    path = StandInRun(name, stand_ins, work).write_configuration("http://localhost:1/v1")
    return dict(leaves(config.load(path, data="/data").model_dump(mode="json")))


def test_every_published_configuration_has_a_stand_in_run() -> None:
    files = {path.stem for path in CONFIGURATIONS.glob("*.yaml")} - {"variants"}
    assert {name for name in files if not name.startswith(OTHERS)} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_stand_in_run_differs_in_listed_settings_only(name: str, tmp_path: Path) -> None:
    before, after = published(name), resolved(name, tmp_path)
    assert before.keys() == after.keys()
    differing = {key for key, value in before.items() if after[key] != value}
    for key in differing:
        rows = [row for row in REPLACEMENTS if fnmatchcase(key, row.pattern)]
        assert len(rows) == 1, key


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_model_data_set_or_address_of_a_published_run_is_left(name: str, tmp_path: Path) -> None:
    values = [value for value in resolved(name, tmp_path).values() if isinstance(value, str)]
    assert not MODELS.keys() & set(values)
    assert not [value for value in values if value.startswith("https://")]


def test_every_listed_replacement_is_used() -> None:
    places = Places(Path("/work"), Path("/models"), "http://localhost:1/v1")
    changed = {key for name in PUBLISHED for key in stand_in(name, places)}
    unused = [
        row.pattern
        for row in REPLACEMENTS
        if not any(fnmatchcase(key, row.pattern) for key in changed)
    ]
    assert unused == []


def test_thresholds_losses_prompts_and_number_formats_are_the_published_ones() -> None:
    kept = (
        *("prompt.*", "grammar", "objective", "corpus.*", "data.*", "lora.*", "pairs.*", "*.dtype"),
        *("*.learning_rate", "*.weight_decay", "*.beta", "*.eta", "*.epsilon", "*epochs", "seed"),
        *("retrieval.variant", "retrieval.top_k", "retrieval.tau", "retrieval.alpha", "rewards.kind"),
        *("sampling.temperature", "sampling.max_steps", "*.max_model_len", "*.adapters"),
        *("*.quantization", "*.gradient_checkpointing", "*.gpu_memory_utilization", "*engine.kind"),
    )  # fmt: skip
    places = Places(Path("/work"), Path("/models"), "http://localhost:1/v1")
    changed = {key for name in PUBLISHED for key in stand_in(name, places)}
    assert [key for key in changed if any(fnmatchcase(key, pattern) for pattern in kept)] == []
