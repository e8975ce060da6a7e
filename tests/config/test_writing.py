"""Configurations as YAML are read back as the same configurations."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import load
from pipeline.config.writing import ABSENT, Entry, as_text, as_yaml, yaml_text
from pipeline.config.yaml_files import parse_yaml

OVERRIDES = {
    "embedded": (
        "per_round.2={pairs: {easy_outcome: 0.4}, dpo: {eta: [1]}}",
        "data.root=../data sets",
        "runs_dir=./a/b",
        "sft_data.sizes={2: 5}",
    )
}


def test_every_configuration_is_read_back(tmp_path: Path) -> None:
    for name in (*OVERRIDES, "hiprag-qwen2.5-7b", "prograph-qwen2.5-3b", "recall/musique"):
        config = load(name, OVERRIDES.get(name, ()))
        file = tmp_path / "config.yaml"
        file.write_text(as_yaml(config), encoding="utf-8")
        again = load(file)
        assert again == config, name
        # What fingerprints hold:
        assert json.dumps(again.deciding()) == json.dumps(config.deciding()), name


TRICKY = st.sampled_from([
    "1e5", "010", "1:30", "2020-01-01", "yes", "~", "", "null", "<<", "0x1f", "1_000", " x", "x\n",
    "\n", "a\n\n", "...", "a\n...\n", "a\u2028b\nc", "x\u2029 y", "\u2028", " \n\n", "a: b", "# c", "- x", "é\u202e\ufeff", "a\n\n  b \n", "\tx\n y", "'", '"', "=", "|", "🂡",
])  # fmt: skip
PRINTABLE = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t\r"), max_size=20
)


@given(text=TRICKY | PRINTABLE)
def test_every_text_is_read_back_as_a_text(text: str) -> None:
    values = {"prompt": {"system": text}}
    written = yaml_text(values)
    assert parse_yaml(written) == values
    assert yaml.safe_load(written) == values  # also with the rules of YAML 1.1
    shown = [Entry("b.c.k", 2, text, "old", "base"), Entry("b.l", 1, [text], ABSENT, ABSENT)]
    assert parse_yaml(as_text([*shown, Entry("k", 0, text, 1, ABSENT), Entry("z", 0, 1, 1, 1)])) == {
        "b": {"c": {"k": text}, "l": [text]}, "k": text, "z": 1,
    }  # fmt: skip
