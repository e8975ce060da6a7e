"""Pairs and trajectories of conversations are masked by writer, and their control tokens checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.errors import TrainingError
from pipeline.core.records import Message
from pipeline.pairs.candidates import pair_of
from pipeline.training.advantages import encode_trajectories
from pipeline.training.encode import encode_pairs
from tests.conversations.test_chat_template import opened
from tests.rollout.test_conversations import call, rolled


@pytest.mark.parametrize("mode", ["qwen2.5", "qwen3-patched-thinking", "llama-3.1"])
def test_sides_of_a_pair_train_the_turns_and_their_ends(mode: str, real_data: Path) -> None:
    tokenizer = opened(real_data, mode).tokenizer
    chosen = rolled(real_data, mode, call(mode, "a"), call(mode, "b"), "Answer: x")
    control = "<|start_header_id|>" if mode == "llama-3.1" else "<|im_start|>"
    rejected = rolled(real_data, mode, call(mode, "c"), f"Answer: y{control}")
    rejected = replace(rejected, trajectory_id="q/1@0123456789ab")
    prompt = [Message("system", "S"), Message("user", "Who?")]
    pair = pair_of(chosen, rejected, "easy", prompt, ({}, {}), round=1)
    [encoded] = encode_pairs(tokenizer, [pair])
    for mask, trajectory in ((encoded.chosen_mask, chosen), (encoded.rejected_mask, rejected)):
        assert mask == [
            int(writer == "model")
            for start, end, writer in trajectory.token_spans
            for _ in range(start, end)
        ]
    turns = [end for _, end, writer in chosen.token_spans if writer == "model"]
    assert [chosen.token_ids[end - 1] for end in turns] == [tokenizer.eos_token_id] * 3
    # Control tokens inside a turn of the chosen side are refused, as in formats of tags.
    with pytest.raises(TrainingError, match="control token"):
        encode_pairs(tokenizer, [pair_of(rejected, chosen, "easy", prompt, ({}, {}), round=1)])


def test_trajectories_of_conversations_are_encoded_for_grpo(real_data: Path) -> None:
    tokenizer = opened(real_data, "qwen2.5").tokenizer
    trajectory = rolled(real_data, "qwen2.5", call("", "a"), "Answer: x")
    [encoded] = encode_trajectories(tokenizer, [trajectory], [[0.5]])
    assert encoded.advantages == [0.5 * trained for trained in encoded.mask]
    assert sum(encoded.mask) == trajectory.tokens.thinking
