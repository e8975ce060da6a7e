"""The prompt as chat messages."""

from __future__ import annotations

import pytest

from pipeline.config import load
from pipeline.config.variants import variants


@pytest.mark.parametrize(
    "name", ["hiprag-qwen2.5-3b", "prograph-qwen2.5-3b", "single-gpu-24gb-search-r1"]
)
def test_other_methods_are_instructed_in_the_users_turn_as_by_their_code(name: str) -> None:
    [message] = load(name).prompt.messages("Who built it?")
    assert message.role == "user"
    assert "if you are sure" not in message.content.lower()
    assert "as you want" in message.content or "as you need" in message.content
    assert message.content.rstrip().endswith("Question: Who built it?")


@pytest.mark.parametrize("name", variants())
def test_a_prompt_of_one_answer_replaces_the_whole_prompt_of_its_base(name: str) -> None:
    config = load(name, ("data.root=/data",))
    if config.retrieval.variant == "none" or config.retrieval.rounds == "prompt":
        assert config.prompt.user == "{question}"
        assert "answer" in config.prompt.system
