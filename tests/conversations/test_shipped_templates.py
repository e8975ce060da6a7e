"""The table of TRL's templates in docs/tools.md is what the probes find."""

from pathlib import Path

import pytest

from tests.conversations.shipped_templates import table, template_files, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def test_the_documented_table_names_every_shipped_template() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for file in template_files():
        assert f"| `{file.stem.removesuffix('_training')}` |" in page


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2_5", "works"),
        ("qwen3", "differs with thinking off"),
        ("qwen3_training", "works"),
        ("glm4moe_training", "works"),
        ("gptoss", "differs"),
        ("gemma4", "differs"),
        ("llama3", "refused"),
        ("phi3", "refused"),
    ],
)
def test_verdicts_on_shipped_templates(name: str, expected: str) -> None:
    [file] = [file for file in template_files() if file.stem == name]
    assert verdict(file)[0] == expected


@pytest.mark.slow
def test_the_documented_table_is_current() -> None:
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")
