"""The JSON schema for editors accepts every shipped configuration and refuses what JSON schema can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipeline.config import load
from pipeline.config.schema import file_schema
from pipeline.config.yaml_files import parse_yaml, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.shipped import CONFIGURATIONS, configuration_names
from tests.config.config_cases import SMALL

FILE_SCHEMA = file_schema()
VALIDATOR = Draft202012Validator(FILE_SCHEMA)


def with_text_keys(value: Any) -> Any:
    """YAML as an editor checks it: JSON has only texts as keys."""
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def accepted(text: str) -> bool:
    return bool(VALIDATOR.is_valid(with_text_keys(parse_yaml(text))))


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(FILE_SCHEMA)


def test_every_shipped_configuration_is_accepted_as_it_stands_and_resolved() -> None:
    for name in configuration_names():
        values = with_text_keys(read_yaml(CONFIGURATIONS / f"{name}.yaml"))
        assert not list(VALIDATOR.iter_errors(values)), name
        resolved = json.loads(load(name, ("data.root=/data",)).model_dump_json())
        assert not list(VALIDATOR.iter_errors(resolved)), name


@pytest.mark.parametrize(
    "text",
    [
        "base: embedded.yaml\nrounds: 1\n",
        "base: embedded.yaml\njudges: null\nper_round: {2: {pairs: {margin: 5}}, 3: null}\n",
        SMALL,
    ],
)
def test_files_that_load_are_accepted(text: str) -> None:
    assert accepted(text)


@pytest.mark.parametrize(
    "text",
    [
        "rounds: 1\n",  # without a base, the required blocks are missing
        "base: embedded.yaml\nround: 1\n",
        "base: embedded.yaml\nsampling: {sampels: 4}\n",
        "base: embedded.yaml\nper_round: {0: {pairs: {margin: 5}}}\n",
        "base: embedded.yaml\nper_round: {2: {grammar: tearag}}\n",
        "base: embedded.yaml\nsft_data: {sizes: {0: 5}}\n",
        "base: [a]\n",
    ],
)
def test_files_that_do_not_load_are_refused(tmp_path: Path, text: str) -> None:
    assert not accepted(text)
    (tmp_path / "case.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load(tmp_path / "case.yaml")
