"""Documents and questions that hold added tokens, halves of them, or tags inside tags."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.records import Message, SftExample
from pipeline.core.sanitize import escape_tokens
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import control_ids, decode, observation_ids, prompt_ids
from pipeline.rollout.grammars import grammar
from pipeline.training.encode import encode_sft
from tests.conversations.generated import hostile
from tests.real_tokenizers import real_tokenizer


# Qwen2.5's differs from Qwen3's in four added tokens alone.
@pytest.fixture(scope="module", params=["qwen3", "llama-3"])
def tokenizer(request: pytest.FixtureRequest, real_data: Path) -> Tokenizer:
    return real_tokenizer(real_data, str(request.param))


def hostile_texts(tokenizer: Tokenizer, count: int) -> list[str]:
    """Every added token alone, then random texts of tokens, halves of tokens, and any script."""
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
    chance = random.Random(0)
    return [*tokens, *(hostile(chance, tokenizer) for _ in range(count - len(tokens)))]


def test_no_text_of_an_observation_becomes_an_added_token(tokenizer: Tokenizer) -> None:
    added = set(tokenizer.added_tokens_decoder)
    for text in hostile_texts(tokenizer, 500):
        ids = observation_ids(tokenizer, text)
        assert added.isdisjoint(ids), text
        normalized = decode(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])
        assert decode(tokenizer, ids) == normalized, text


def test_no_text_of_a_question_becomes_an_added_token_of_the_prompt(tokenizer: Tokenizer) -> None:
    added = tokenizer.added_tokens_decoder

    def added_in_prompt(question: str) -> list[int]:
        ids = prompt_ids(tokenizer, [Message("system", "Search."), Message("user", question)])
        return [token_id for token_id in ids if token_id in added]

    plain, texts = added_in_prompt("Who?"), hostile_texts(tokenizer, 500)
    for start in range(0, len(texts), 10):
        question = f"Who {' '.join(texts[start : start + 10])}?"
        assert added_in_prompt(question) == plain, question


def test_observations_of_supervised_examples_hold_no_added_token(tokenizer: Tokenizer) -> None:
    """Their documents were sanitized without the tokenizer."""
    document = "x ".join(token.content for token in tokenizer.added_tokens_decoder.values())
    head, tail = "<search>who</search>", "so"
    spans = [(0, len(head), "model"), (len(head), len(head) + len(document), "observation")]
    end = spans[-1][1]
    example = SftExample(
        example_id="e", question_id="q", hops=1,
        prompt=[Message("system", "Search."), Message("user", "Who?")],
        completion=head + document + tail, spans=[*spans, (end, end + len(tail), "model")],
    )  # fmt: skip
    [encoded] = encode_sft(tokenizer, [example])
    prompt = prompt_ids(tokenizer, example.prompt)
    completion = encoded.input_ids[len(prompt) : -1]
    assert set(tokenizer.added_tokens_decoder).isdisjoint(completion)


def test_a_tag_that_the_policy_samples_as_one_added_token_is_not_malformed(real_data: Path) -> None:
    qwen3 = real_tokenizer(real_data, "qwen3")
    [think] = qwen3("<think>", add_special_tokens=False)["input_ids"]
    assert think in qwen3.added_tokens_decoder
    assert think not in control_ids(qwen3)


TOKENS = st.lists(st.text("ab<>&#;@35lt ", min_size=1, max_size=4), min_size=1, max_size=6)


@given(TOKENS, st.text("ab<>&#;@35lt ", max_size=60))
def test_escaping_ends_and_leaves_no_token_that_can_be_escaped(
    tokens: list[str], text: str
) -> None:
    escaped = escape_tokens(text, tuple(tokens))
    assert escape_tokens(escaped, tuple(tokens)) == escaped
    for token in tokens:
        if set("ab@<> ") >= set(token) and token.strip():
            assert token not in escaped


@pytest.mark.parametrize("name", ["search-r1", "prograph", "r1-searcher"])
def test_tags_that_never_close_are_read_in_linear_time(name: str) -> None:
    """With a search from each of them to the end of the text, it takes half an hour."""
    form: Any = grammar(name)
    for tag in ("<answer>", form.search_tags[1] + form.observation_tags[0]):
        text = tag * (500_000 // len(tag))
        assert form.parse(text).answer is None
        assert form.spans(text) == [(0, len(text), "model")]
