"""``steep config``: what differs from the base, what a setting means, and the schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.config.lookup import all_blocks, all_names
from pipeline.config.schema import file_schema
from tests.cli.malformed_inputs import accepted, refused


def config(*words: object) -> str:
    return accepted("config", *words)


@pytest.mark.parametrize("name", ["embedded", "hiprag-qwen2.5-7b", "tearag-eta-0"])
def test_what_is_shown_reads_back_as_the_same_configuration(name: str, tmp_path: Path) -> None:
    printed = config("show", "-c", name, "--set", "data.root=/data")
    (tmp_path / "again.yaml").write_text(printed)
    assert load(tmp_path / "again.yaml") == load(name, ("data.root=/data",))


def test_settings_that_differ_from_base_and_default_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("low.yaml").write_text(
        "base: embedded.yaml\nsampling: {samples: 4}\nlora: {targets: [v_proj]}\n"
    )
    Path("own.yaml").write_text("base: low.yaml\nsampling: {samples: 6}\ndpo: {eta: [1, 2]}\n")
    printed = config("show", "-c", "own.yaml", "--set", "seed=7").splitlines()
    assert "seed: 7  # base: 0; default: 0" in printed
    assert "  samples: 6  # base: 4; default: 8" in printed
    assert "  top_p: 1.0" in printed
    assert printed[printed.index("  eta:") - 1] == "  # base: [130.0]; default: [1.0, 0.5, 0.25]"
    assert printed[printed.index("  targets:") - 1].startswith(
        "  # default: ['q_proj', "
    )  # as in the base
    changed = config("show", "-c", "own.yaml", "--set", "seed=7", "--changed")
    assert "samples: 6" in changed
    assert "top_p" not in changed


def test_a_setting_is_explained_with_its_values_readers_and_kind() -> None:
    facts = json.loads(
        config("explain", "sampling.samples", "--set", "sampling.samples=5", "--json")
    )
    assert facts == {
        "key": "sampling.samples",
        "description": "R: trajectories per question",
        "values": "a whole number from 2, up to 10,000",
        "default": 8,
        "here": 5,
        "read by": "sample, sft-sample, score",
        "change": "decides results: it is in fingerprints, so a change reruns these stages and those after them",
    }
    printed = config("explain", "sampling.batch")
    assert "it is in no fingerprint, so a change reruns nothing" in printed
    assert "one of fill, llm" in config("explain", "sft_data.rewriter")
    assert "a number above 0, up to 1,000,000; or null" in config("explain", "pairs.step_margin")


def test_blocks_lists_and_rounds_are_found() -> None:
    block = config("explain", "pairs")
    assert "easy_outcome: maximum outcome" in block
    assert '"corpus.jsonl"' in config("explain", "corpus.files.0.path", "--json")
    margin = ("--set", "per_round={2: {pairs: {margin: 9}}}")
    of_round = json.loads(config("explain", "per_round.2.pairs.margin", *margin, "--json"))
    assert (of_round["key"], of_round["here"]) == ("pairs.margin", 9)


def test_every_setting_can_be_explained() -> None:
    from pipeline.config.lookup import find_field
    from pipeline.engine.settings_reference import setting_stages

    names = list(all_names())
    assert len(names) > sum(len(block.settings) for block in all_blocks())
    for name in names:
        field = find_field(name)
        assert field.info.description
        assert field.below is not None or "any value" not in field.values, name
        assert setting_stages(field.place)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["explain", "samples"], "there is no setting samples; there is sampling.samples"),
        (["explain", "sampling.sampels"], "there is no setting sampling.sampels; there is sampling.samples"),
        (["explain", "dtype"], "engine.dtype, sft.dtype, dpo.dtype, grpo.dtype, graph.engine.dtype, "),
        (["explain", "x.y.z\x1b"], "steep config show lists all settings"),
        (["explain", ""], "there is no setting"),
        (["explain", "per_round.9.pairs.margin"], "round is 9, and rounds is 3"),
        (["explain", "per_round.0.pairs.margin"], "round is 0; rounds count from 1"),
        (["show", "--data", "/"], "so that those in / (--data, DATA=) are not read; choose another"),
        (["show", "-c", ""], ". is a directory; name a YAML file in it"),
        (["show", "-c", "absent"], "absent: no such configuration file; `steep init --list`"),
        (["show", "--set", "rounds=x"], "rounds is 'x'; set it to a whole number"),
    ],
)  # fmt: skip
def test_an_unknown_setting_or_file_is_one_sentence(arguments: list[str], problem: str) -> None:
    assert problem in refused("config", *arguments)


def test_the_schema_for_editors_is_written(tmp_path: Path) -> None:
    config("schema", "-o", tmp_path / "schema.json")
    text = (tmp_path / "schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == file_schema()
    assert config("schema") == text
