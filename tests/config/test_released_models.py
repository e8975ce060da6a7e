"""The configurations of released models: what they run, and the text of their prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.llm.tokens import prompt_ids
from tests.real_tokenizers import real_tokenizer

RELEASED = {
    "search-r1-released": ("search-r1", "PeterJinGo/SearchR1-nq_hotpotqa_train-qwen2.5-7b-em-ppo"),
    "r1-searcher-released": ("r1-searcher", "XXsongLALA/Qwen-2.5-7B-base-RAG-RL"),
    "r1-searcher-released-llama-8b": ("r1-searcher", "XXsongLALA/Llama-3.1-8B-instruct-RAG-RL"),
}
# The ends of the prompts, as the released evaluation code writes them.
PROMPTS = {
    "search-r1-released": (
        "qwen2.5",  # whose template adds its own system message
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "r1-searcher-released": ("qwen2.5", "", "\nAssistant: <think>"),
    "r1-searcher-released-llama-8b": (
        "llama-3",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n",
        "<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<think>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_is_evaluated_on_tearags_test_sets_and_nothing_is_trained(
    name: str,
) -> None:
    config = load(name, ("data.root=/data",))
    assert (config.grammar, config.model.base) == RELEASED[name]
    tearag = load("tearag-llama3-8b", ("data.root=/data",))
    assert config.data.test == tearag.data.test
    assert len(config.data.test) == 6
    assert (config.start, config.rounds, config.graph.source) == ("base", 0, "none")


@pytest.mark.parametrize("name", RELEASED)
def test_the_prompt_of_a_released_model_is_laid_out_as_its_authors_do(
    name: str, real_data: Path
) -> None:
    config = load(name, ("data.root=/data",))
    family, begin, end = PROMPTS[name]
    tokenizer = real_tokenizer(real_data, family)
    if config.model.chat_template is not None:
        tokenizer.chat_template = config.model.chat_template
    text = tokenizer.decode(prompt_ids(tokenizer, config.prompt.messages("Who?")))
    assert text.startswith(begin)
    assert text.endswith(end)
    asked = {
        "qwen2.5": "\nUser:",
        "llama-3": "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
    }
    written = config.prompt.user.replace("{question}", "Who?").strip()
    if config.prompt.system:
        written = f"{config.prompt.system}{asked[family]}{written}"
    assert text.removeprefix(begin).removesuffix(end).strip() == written
