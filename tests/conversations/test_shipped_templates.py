"""The table of TRL's templates in docs/tools.md is what the probes find."""

import random
from pathlib import Path

import pytest

from pipeline.llm.tokens import markup
from tests.conversations.generated import conversation
from tests.conversations.shipped_templates import chat_template, table, template_files, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def test_the_documented_table_names_every_shipped_template() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for file in template_files():
        assert f"`{file.stem}`" in page


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [file.stem for file in template_files()])
def test_hostile_results_change_no_role_in_a_working_template(name: str) -> None:
    [file] = [file for file in template_files() if file.stem == name]
    if verdict(file)[0] != "works":
        pytest.skip(f"{name} does not work")
    template, chance = chat_template(file, thinking=True), random.Random(name)
    added = set(markup(template.tokenizer))
    for _ in range(20):
        messages = conversation(chance, reasoning=True, calls=1, attack=template.tokenizer)
        harmless = [
            message | {"content": "x"} if message["role"] == "tool" else message
            for message in messages
        ]
        attacked, plain = template.build(messages), template.build(harmless)
        assert attacked.mismatch == ""
        assert [i for i in attacked.token_ids if i in added] == [
            i for i in plain.token_ids if i in added
        ]
