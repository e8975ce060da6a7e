"""The table of TRL's templates in docs/tools.md is what the probes find."""

import random
from pathlib import Path

import pytest

from pipeline.llm.tokens import markup
from tests.conversations.generated import conversation, with_results
from tests.conversations.shipped_templates import FILES, chat_template, table, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def test_the_documented_table_names_every_shipped_template() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in FILES if f"`{name}`" not in page] == []


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
    assert verdict(FILES[name])[0] == expected


@pytest.mark.slow
def test_the_documented_table_is_current() -> None:
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_hostile_results_change_no_role_in_a_working_template(name: str) -> None:
    if verdict(FILES[name])[0] != "works":
        pytest.skip(f"{name} does not work")
    template, chance = chat_template(FILES[name], thinking=True), random.Random(name)
    tokens = set(markup(template.tokenizer))
    for _ in range(20):
        messages = conversation(chance, reasoning=True, calls=1, attack=template.tokenizer)
        attacked, plain = template.build(messages), template.build(with_results(messages, "x"))
        assert attacked.mismatch == ""
        added, expected = (
            [token_id for token_id in built.token_ids if token_id in tokens]
            for built in (attacked, plain)
        )
        assert added == expected
