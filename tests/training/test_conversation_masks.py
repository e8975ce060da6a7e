"""Pairs and trajectories of conversations are masked by writer, and their control tokens checked."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import compress
from pathlib import Path

import pytest

from pipeline.core.errors import InputError, TrainingError
from pipeline.core.methods import METHODS
from pipeline.core.record_io import as_json
from pipeline.core.records import Message, SftExample
from pipeline.llm.tokens import decode
from pipeline.pairs.candidates import pair_of
from pipeline.pairs.step_pairs import step_pairs
from pipeline.rollout.conversations.messages import recorded
from pipeline.rollout.conversations.steps import tool_format, write
from pipeline.rollout.grammars import grammar
from pipeline.training.advantages import encode_trajectories
from pipeline.training.encode import IGNORED, encode_pairs, encode_sft
from tests.conversations.test_chat_template import MODES, opened
from tests.conversations.test_steps import WRITTEN
from tests.rollout.test_conversations import call, rolled


@pytest.mark.parametrize("mode", ["qwen3-patched-thinking", "llama-3.1"])
def test_sides_of_a_pair_train_the_turns_and_their_ends(mode: str, real_data: Path) -> None:
    tokenizer = opened(real_data, mode).tokenizer
    chosen = rolled(real_data, mode, call(mode, "a"), call(mode, "b"), "Answer: x")
    control = "<|start_header_id|>" if mode == "llama-3.1" else "<|im_start|>"
    rejected = rolled(real_data, mode, call(mode, "c"), f"Answer: y{control}")
    rejected = replace(rejected, trajectory_id="q/1@0123456789ab")
    prompt = [Message("system", "S"), Message("user", "Who?")]
    pair = pair_of(chosen, rejected, "easy", prompt, round=1, tools="[]")
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
        encode_pairs(
            tokenizer,
            [pair_of(rejected, chosen, "easy", prompt, round=1, tools="[]")],
        )


def test_the_texts_of_a_pair_are_compared_with_its_ids(real_data: Path) -> None:
    tokenizer = opened(real_data, "qwen2.5").tokenizer
    sides = [rolled(real_data, "qwen2.5", f"So.{call('', 'a')}", f"Answer: {n}") for n in "xy"]
    pair = pair_of(*sides, "easy", [], round=1, tools="[]")
    assert [message.role for message in pair.prompt] == ["system", "user"]
    [one, *_] = pair.chosen[0].tool_calls or []
    assert (one.function.name, json.loads(one.function.arguments)["query"]) == ("search", "a")
    assert [message.role for message in pair.chosen] == ["assistant", "tool", "assistant"]
    assert encode_pairs(tokenizer, [pair])
    with pytest.raises(TrainingError, match="lack the text 'Answer: y' of their turn"):
        encode_pairs(tokenizer, [replace(pair, chosen=[*pair.chosen[:-1], pair.rejected[-1]])])
    inverted = [
        (start, end, "observation" if writer == "model" else "model")
        for start, end, writer in pair.chosen_spans
    ]
    with pytest.raises(TrainingError, match=r"control token|trained pieces|lack the text"):
        encode_pairs(tokenizer, [replace(pair, chosen_spans=inverted)])


def test_a_rejected_side_may_end_in_the_middle_of_a_turn(real_data: Path) -> None:
    chosen = rolled(real_data, "qwen2.5", call("", "a"), "Answer: x")
    turns = (call("", "a"), "Answer: " + "word " * 90)
    rejected = rolled(real_data, "qwen2.5", *turns, max_segment_tokens=80)
    assert (rejected.stop, rejected.answer, rejected.format_ok) == ("max_tokens", None, False)
    pair = pair_of(chosen, rejected, "format", [], round=1, tools="[]")
    [encoded] = encode_pairs(opened(real_data, "qwen2.5").tokenizer, [pair])
    assert sum(encoded.rejected_mask) == rejected.tokens.thinking
    assert pair.rejected[-1].content.startswith("Answer: word word")


def test_a_step_pair_of_conversations_trains_its_last_turn(real_data: Path) -> None:
    tokenizer = opened(real_data, "qwen2.5").tokenizer
    sides = []
    for number, query in enumerate("bc"):
        one = rolled(real_data, "qwen2.5", call("", "a"), call("", query), "Answer: x")
        steps = [{"total": 1.0}, {"total": 1.0 - number}, {"total": 1.0}]
        sides.append(replace(one, trajectory_id=f"q/{number}", rewards={"steps": steps}))
    [(chosen, rejected)] = step_pairs(sides, 0.5)
    pair = pair_of(chosen, rejected, "step", [], round=1, tools="[]")
    assert [message.role for message in pair.rejected] == ["assistant", "tool", "assistant"]
    [encoded] = encode_pairs(tokenizer, [pair])
    trained = [*compress(encoded.rejected_ids, encoded.rejected_mask)]
    assert decode(tokenizer, trained) == f"{call('', 'c')}<|im_end|>"


def test_trajectories_of_conversations_are_encoded_for_grpo(real_data: Path) -> None:
    tokenizer = opened(real_data, "qwen2.5").tokenizer
    trajectory = rolled(real_data, "qwen2.5", call("", "a"), "Answer: x")
    [encoded] = encode_trajectories(tokenizer, [trajectory], [[0.5]])
    assert encoded.advantages == [0.5 * trained for trained in encoded.mask]
    assert sum(encoded.mask) == trajectory.tokens.thinking


def supervised(method: str) -> SftExample:
    turns = write(tool_format(method), WRITTEN[method], "9 million", grammar(method).item_lines)
    prompt = [Message("system", "S"), Message("user", "Q?")]
    return SftExample(
        "e", "q", 2, prompt, "", [],
        messages=recorded(turns), tools=json.dumps([tool_format(method).tool]),
    )  # fmt: skip


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"qwen3-thinking"}))  # wants reasoning
@pytest.mark.parametrize("method", METHODS)
def test_supervised_conversations_equal_the_templates_rendering(
    method: str, mode: str, real_data: Path
) -> None:
    tokenizer, example = opened(real_data, mode).tokenizer, supervised(method)
    if mode.startswith("llama"):  # its template drops the text beside a call
        for message in example.messages:
            message.content = "" if message.tool_calls else message.content
    [encoded] = encode_sft(tokenizer, [example], thinking=MODES[mode][2])
    arguments = {} if MODES[mode][2] is None else {"enable_thinking": MODES[mode][2]}
    messages = [as_json(one) for one in (*example.prompt, *example.messages)]
    for message in messages:
        for made in message.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    expected = tokenizer.apply_chat_template(
        messages, tools=[tool_format(method).tool], tokenize=True, return_dict=False, **arguments
    )
    assert encoded.input_ids == expected[: len(encoded.input_ids)]
    assert decode(tokenizer, expected[len(encoded.input_ids) :]).strip() == ""
    trained = [token for token in encoded.labels if token != IGNORED]
    assert decode(tokenizer, trained).endswith(f"Answer: 9 million{tokenizer.eos_token}")
    assert trained.count(tokenizer.eos_token_id) == 3


def test_supervised_texts_and_conversations_are_encoded_in_order(real_data: Path) -> None:
    tokenizer, conversation = opened(real_data, "qwen2.5").tokenizer, supervised("hiprag")
    text = SftExample("t", "q", 0, [Message("user", "Q?")], "Rome", [(0, 4, "model")])
    encoded = encode_sft(tokenizer, [text, conversation, text])
    assert [one.id for one in encoded] == ["t", "e", "t"]
    assert encoded[0].trained_tokens == 3
    conversation.messages[0].content = "I look.<|im_end|>"
    with pytest.raises(InputError, match=r"^record 2, example e: messages: .* ends a turn"):
        encode_sft(tokenizer, [text, conversation])
