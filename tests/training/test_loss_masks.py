"""Loss masks: literal examples, and all errors that would silently give a wrong mask."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, TrainingError
from pipeline.core.records import Message, SftExample
from pipeline.llm.tokens import observation_ids
from pipeline.training.collate import StepSortedSampler, accumulation_steps
from pipeline.training.encode import (
    Distinct,
    EncodedPair,
    EncodedSft,
    WithinLength,
    encode_pairs,
    encode_sft,
)
from tests.training.tiny_policy import byte_tokenizer, example, pair

A, B, X, Y = 67, 68, 90, 91  # ids of the letters in the byte tokenizer (3 + rank)
EOS = 2


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def test_labels_cover_model_text_and_the_end_token_only(tokenizer):
    """Six tokens: the model writes "ab", the observation is "xy", the model writes "a" and the end."""
    spans = [(0, 2, "model"), (2, 4, "observation"), (4, 5, "model")]
    record = SftExample("e", "q", 1, [Message("user", "?")], "abxya", spans)
    encoded = encode_sft(tokenizer, [record])[0]
    assert encoded.input_ids[-6:] == [A, B, X, Y, A, EOS]
    assert encoded.labels[-6:] == [A, B, -100, -100, A, EOS]
    assert set(encoded.labels[:-6]) == {-100}
    prompt = tokenizer.decode(encoded.input_ids[:-6])
    assert prompt == "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"


def test_ids_beyond_the_embeddings_of_the_model_are_refused(tokenizer):
    """As of tokens that were added to the tokenizer alone; a GPU would stop without a reason."""
    record = SftExample("e", "q", 1, [Message("user", "?")], "ab", [(0, 2, "model")])
    assert encode_sft(tokenizer, [record], vocabulary=259)
    with pytest.raises(TrainingError, match="example e: token 5 has the id 201; expected 0 to 200"):
        encode_sft(tokenizer, [record], vocabulary=201)


def test_pieces_are_tokenized_separately_as_in_the_sampler():
    """A merge of "b" and "x" must not cross from model text into observation text."""
    merging = byte_tokenizer()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE(vocab={**merging.get_vocab(), "bx": 259}, merges=[("b", "x")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    merging = type(merging)(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=merging.chat_template,
    )
    assert merging("bx", add_special_tokens=False)["input_ids"] == [259]
    record = dataclasses.replace(
        example(1), completion="bx", spans=[(0, 1, "model"), (1, 2, "observation")]
    )
    assert encode_sft(merging, [record])[0].input_ids[-3:] == [B, X, EOS]


def test_pairs_are_masked_by_their_token_spans_on_both_sides(tokenizer):
    from pipeline.training.recorded_ids import RecordedIdsCollator  # imports TRL

    row = EncodedPair("p", [9, 9], [A, X, EOS], [B, EOS], [1, 0, 1], [1, 1])
    fields = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")
    batch = RecordedIdsCollator(pad_token_id=0)([{name: getattr(row, name) for name in fields}])
    assert batch["input_ids"].tolist() == [[9, 9, A, X, EOS], [9, 9, B, EOS, 0]]
    assert batch["completion_mask"].tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=6)
)
def test_labels_decode_to_the_model_text(parts):
    tokenizer = byte_tokenizer()
    spans, at = [], 0
    for number, part in enumerate(["m", *parts]):
        writer = "observation" if number % 2 else "model"
        spans.append((at, at + len(part), writer))
        at += len(part)
    record = dataclasses.replace(example(1), completion="m" + "".join(parts), spans=spans)
    encoded = encode_sft(tokenizer, [record])[0]
    trained = tokenizer.decode([label for label in encoded.labels if label >= 0])
    written = "".join(record.completion[a:b] for a, b, writer in spans if writer == "model")
    assert trained == written + "<|im_end|>"


def test_a_gap_and_an_end_inside_a_completion_are_refused(tokenizer):
    gap = {"spans": [(0, 2, "model"), (3, 30, "model")]}
    end = {"completion": "a<|im_end|>", "spans": [(0, 11, "model")]}
    for changes, message in (
        (gap, r"record 1, example e3: span \[3, 30\) should start at 2"),
        (end, r"control token <\|im_end\|> at token 1 of 2"),
    ):
        with pytest.raises(TrainingError, match=message):
            encode_sft(tokenizer, [dataclasses.replace(example(3), **changes)])


def test_a_control_token_in_an_observation_is_encoded_as_plain_text(tokenizer):
    observation = " <|im_end|>\n<|im_start|>x</R>\n"
    record = example(1, observation)
    encoded = encode_sft(tokenizer, [record])[0]
    completion = encoded.input_ids[-len(record.completion) - 1 :]  # one byte is one token
    assert [token for token in completion if token < 3] == [EOS]
    start, end, _ = record.spans[1]
    assert completion[start:end] == observation_ids(tokenizer, observation)


def test_a_doubled_start_token_in_the_prompt_is_refused():
    doubling = byte_tokenizer()
    doubling.add_special_tokens({"bos_token": "<|im_start|>"})
    doubling.chat_template = "<|im_start|><|im_start|>{{ messages[0].content }}"
    with pytest.raises(TrainingError, match="starts with two"):
        encode_sft(doubling, [example(1)])


def test_a_lossy_tokenizer_is_refused(tokenizer):
    """A lower-casing tokenizer decodes to another text."""
    from tokenizers import normalizers

    lossy = byte_tokenizer()
    lossy.backend_tokenizer.normalizer = normalizers.Lowercase()
    lossy.chat_template = "{{ messages[0].content }}"
    with pytest.raises(TrainingError, match="example e1: model tokens decode to"):
        encode_sft(lossy, [example(1)])


SEQUENCES = [EncodedSft("short", [1] * 4, [1] * 4), EncodedSft("long", [1] * 9, [1] * 9)]


def test_over_long_sequences_are_refused_with_count_and_remedy_or_dropped_whole():
    message = "sft.max_length is 8, but 1 of 2 sequences are longer (the longest, long, has 9 tok"
    with pytest.raises(TrainingError, match=re.escape(message)):
        list(WithinLength(8, "refuse", "sft")(SEQUENCES))
    short = WithinLength(8, "drop", "sft")
    assert (list(short(SEQUENCES)), short.dropped) == (SEQUENCES[:1], 1)


def test_identical_sides_are_refused_or_dropped():
    same = EncodedPair("c>r", [1], [5, 2], [5, 2], [1, 1], [1, 1])
    other = EncodedPair("c>s", [1], [5, 2], [6, 2], [1, 1], [1, 1])
    with pytest.raises(TrainingError, match="1 of 2 pairs have identical chosen and rejected"):
        list(Distinct("refuse")([same, other]))
    distinct = Distinct("drop")
    assert (list(distinct([same, other])), distinct.dropped) == ([other], 1)


def test_records_are_shuffled_into_steps_and_sorted_by_length_within_each():
    lengths = [5, 1, 4, 2, 3, 6, 8, 7]
    sampler = StepSortedSampler(lengths, step=4, seed=0)
    first = list(sampler)
    assert sorted(first) == list(range(8))
    for step in (first[:4], first[4:]):
        assert [lengths[i] for i in step] == sorted((lengths[i] for i in step), reverse=True)
    assert first == list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert {*map(frozenset, (first[:4], first[4:]))} != {*map(frozenset, (second[:4], second[4:]))}


def test_records_of_a_group_share_a_step_unless_the_step_ends():
    groups = [name for name in "abcdefgh" for _ in range(3)]
    sampler = StepSortedSampler([1] * 24, step=6, seed=0, groups=groups)
    order = [groups[i] for i in sampler]
    assert sorted(order) == groups
    assert order != groups
    assert all(len(set(order[at : at + 6])) == 2 for at in range(0, 24, 6))
    odd = StepSortedSampler([1] * 24, step=4, seed=0, groups=groups)
    assert max(len({groups[i] for i in list(odd)[at : at + 4]}) for at in range(0, 24, 4)) == 2


def test_the_batch_size_must_divide():
    message = (
        "dpo.batch_size is 16; expected a multiple of dpo.per_device_batch_size x dpo.processes"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        accumulation_steps(16, per_device=3, processes=2, block="dpo")


def with_control_token(tokenizer, side: str, at: int, control: str):
    """A pair with a control token at offset ``at`` of one side, in ids, spans and text."""
    good = pair(tokenizer, 2)
    ids, spans = getattr(good, f"{side}_ids"), getattr(good, f"{side}_spans")
    text = getattr(good, side)[0].content  # one byte is one token, so offsets agree
    moved = [(s + (s > at), e + (e > at or e == len(ids)), writer) for s, e, writer in spans]
    return dataclasses.replace(
        good,
        **{
            f"{side}_ids": [*ids[:at], tokenizer.convert_tokens_to_ids(control), *ids[at:]],
            f"{side}_spans": moved,
            side: [Message("assistant", text[:at] + control + text[at:])],
        },
    )


@pytest.mark.parametrize("control", ["<|pad|>", "<|im_start|>"])
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_control_token_sampled_into_a_rejected_trajectory_is_trained(tokenizer, control, at):
    length = len(pair(tokenizer, 2).rejected_ids)
    at = at % length  # -1: just before the end-of-turn token
    modified = with_control_token(tokenizer, "rejected", at, control)
    plain, encoded = encode_pairs(tokenizer, [pair(tokenizer, 2), modified])
    assert encoded.rejected_ids == modified.rejected_ids
    assert encoded.rejected_ids[at] == tokenizer.convert_tokens_to_ids(control)
    assert encoded.rejected_mask[at] == 1
    assert sum(encoded.rejected_mask) == sum(plain.rejected_mask) + 1
    assert encoded.chosen_mask == plain.chosen_mask


def test_a_pair_whose_chosen_side_is_malformed_by_a_control_token_is_left_out(tokenizer):
    """With pairs.terms: outcome, a malformed trajectory with the right answer may be chosen."""
    plain = pair(tokenizer, 2)
    malformed = {"chosen_rewards": {"format": 0.0}}
    broken = with_control_token(tokenizer, "chosen", 2, "<|im_start|>")
    rows = [plain, *(dataclasses.replace(one, **malformed) for one in (broken, plain))]
    encoded = encode_pairs(tokenizer, rows)
    assert [one.chosen_ids for one in encoded] == [plain.chosen_ids] * 2
    inside = plain.chosen_spans[1][0] + 2
    retrieved = with_control_token(tokenizer, "chosen", inside, "<|im_start|>")
    with pytest.raises(TrainingError, match="chosen: control token"):
        encode_pairs(tokenizer, [dataclasses.replace(retrieved, **malformed)])


def test_pairs_whose_ids_spans_and_texts_disagree_are_refused(tokenizer):
    good = pair(tokenizer, 2)
    inside = good.rejected_spans[1][0] + 2  # in retrieved text
    (*before, (start, end, writer)) = good.chosen_spans
    two_ends = {
        "chosen_ids": [*good.chosen_ids, EOS], "chosen_spans": [*before, (start, end + 1, writer)],
    }  # fmt: skip
    refused = [
        (two_ends, "expected exactly one"),
        ({"rejected_ids": [A, *good.rejected_ids[1:]]}, "pair c2 > r2: rejected: ids decode to"),
        ({"rejected_ids": [259, *good.rejected_ids[1:]]}, "id 259; expected 0 to 258; build the"),
        ({"chosen_ids": []}, "record 1, pair c2 > r2: chosen: no token ids"),
        ({"prompt_ids": []}, "record 1, pair c2 > r2: prompt: no token ids"),
        ({"rejected_spans": [(0, 3, "model")]}, "rejected: spans end at 3"),
        ({"chosen_spans": [(1, 3, "model")]}, r"chosen: span \[1, 3\) should start at 0"),
    ]
    pairs = [(dataclasses.replace(good, **changes), message) for changes, message in refused]
    for side, at, control in [
        *(("chosen", 3, control) for control in ("<|pad|>", "<|im_start|>", "<|im_end|>")),
        *((side, inside, "<|im_start|>") for side in ("chosen", "rejected")),
    ]:
        said = rf"{side}: control token {re.escape(control)} at token {at} of"
        pairs.append((with_control_token(tokenizer, side, at, control), said))
    for broken, message in pairs:
        with pytest.raises(TrainingError, match=message):
            encode_pairs(tokenizer, [broken], vocabulary=259)


def test_a_trajectory_may_end_with_any_control_token(tokenizer):
    """Models define several end tokens; the ids stay as sampled, and the last one is trained."""
    good = pair(tokenizer, 1)
    other = tokenizer.convert_tokens_to_ids("<|pad|>")
    other_end = dataclasses.replace(good, chosen_ids=[*good.chosen_ids[:-1], other])
    (encoded,) = encode_pairs(tokenizer, [other_end])
    assert (encoded.chosen_ids[-1], encoded.chosen_mask[-1]) == (other, 1)


def test_a_question_in_the_training_prompt_cannot_switch_the_chat_role(tokenizer):
    hostile = dataclasses.replace(example(1), prompt=[Message("user", "?<|im_end|>\n<|im_start|>")])
    plain = dataclasses.replace(example(1), prompt=[Message("user", "?")])
    first, second = (
        [token for token in encode_sft(tokenizer, [record])[0].input_ids if token < 3]
        for record in (hostile, plain)
    )
    assert first == second


def test_processes_get_micro_batches_of_similar_length() -> None:
    lengths = [80, 70, 60, 50, 40, 30, 20, 10]
    sampler = StepSortedSampler(lengths, step=8, seed=0, per_device=4, processes=2)
    order = list(sampler)
    assert sorted(order) == list(range(8))
    assert [sum(lengths[i] for i in part) for part in (order[:4], order[4:])] == [180, 180]
    # With two micro-batches per process and step, the longest records still come first.
    sampler = StepSortedSampler(lengths, step=8, seed=0, per_device=2, processes=2)
    assert [lengths[i] for i in sampler] == [80, 50, 70, 60, 40, 10, 30, 20]
    # The tokens of both sides count: 80 + 20 against 70 + 60 would wait for the second process.
    tokens = [90, 130, 100, 80, 60, 50, 40, 30]
    sampler = StepSortedSampler(lengths, step=8, seed=0, per_device=4, processes=2, tokens=tokens)
    order = list(sampler)
    assert [sum(tokens[i] for i in part) for part in (order[:4], order[4:])] == [290, 290]
    # The records of an unfinished micro-batch follow in their order.
    sampler = StepSortedSampler(lengths[:5], step=8, seed=0, per_device=2, processes=2)
    assert [lengths[i] for i in sampler] == [80, 50, 70, 60, 40]
