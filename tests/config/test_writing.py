"""Configurations as YAML are read back as the same configurations."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import load
from pipeline.config.writing import as_yaml
from pipeline.config.yaml_files import parse_yaml
from pipeline.core.shipped import configuration_names

OVERRIDES = {
    "embedded": (
        "per_round.2={pairs: {easy_outcome: 0.4}, dpo: {eta: [1]}}",
        "data.root=../data sets",
        "runs_dir=./a/b",
        "sft_data.sizes={2: 5}",
    )
}


def test_every_configuration_is_read_back(tmp_path: Path) -> None:
    for name in configuration_names():
        config = load(name, OVERRIDES.get(name, ()))
        file = tmp_path / "config.yaml"
        file.write_text(as_yaml(config), encoding="utf-8")
        again = load(file)
        assert again == config, name
        assert as_yaml(again) == file.read_text(encoding="utf-8"), name
        # What fingerprints hold:
        assert json.dumps(again.deciding()) == json.dumps(config.deciding()), name


EMBEDDED = load("embedded")
TRICKY = st.sampled_from([
    "1e5", "010", "1:30", "2020-01-01", "yes", "~", "", "null", "<<", "0x1f", "1_000", " x", "x\n",
    "a: b", "# c", "- x", "é\u202e\ufeff", "a\n\n  b \n", "\tx\n y", "'", '"', "=", "|", "🂡",
])  # fmt: skip
PRINTABLE = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t\r"), max_size=20
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TRICKY | PRINTABLE)
def test_every_text_is_read_back_as_a_text(text: str) -> None:
    prompt = EMBEDDED.prompt.model_copy(update={"system": text})
    written = as_yaml(EMBEDDED.model_copy(update={"prompt": prompt}))
    assert parse_yaml(written)["prompt"]["system"] == text
    assert yaml.safe_load(written)["prompt"]["system"] == text  # also with the rules of YAML 1.1
