"""The tiny reader: its tokenizer, its training texts, and the identity of the committed weights."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tiny_reader import (
    encode,
    formats,
    packing,
    trajectories,
)
from benchmarks.tiny_reader.simulated_retriever import Item
from benchmarks.tiny_reader.training_texts import (
    TRAJECTORY_SHARES,
    mixed_texts,
)
from pipeline.closed_world.world import generate_world

MODEL = Path(__file__).parents[2] / "data" / "tiny_reader"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def test_a_name_has_the_same_tokens_in_every_position(tokenizer: Any) -> None:
    def ids(text: str) -> list[int]:
        return tokenizer(text).input_ids

    name = ids("Branto Kelsi")
    for text in ('Title: "Branto Kelsi" Text', "Who is Branto Kelsi?", "\nBranto Kelsi\n"):
        inside = ids(text)
        windows = [inside[i : i + len(name)] for i in range(len(inside))]
        assert name in windows, text


def test_the_chat_template_is_chatml_and_adds_no_beginning_of_text(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer(text).input_ids
    assert tokenizer.bos_token_id is None
    assert tokenizer.decode([ids[0]]) == "<|im_start|>"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|pad|>")


def test_only_model_text_is_trained_and_span_weights_apply_on_request(tokenizer: Any) -> None:
    segments = [
        encode.Segment("[docs]\nTolora\n", False),
        encode.Segment("so Tolora", True, ((3, 9, 4.0),)),
        encode.Segment("<|im_end|>", True),
    ]
    plain, weighted = (
        encode.encode_samples(tokenizer, [(segments, "path")], use_span_weights=flag)[0]
        for flag in (False, True)
    )
    text = [tokenizer.decode([i]) for i in weighted.ids]
    num_context = len(tokenizer("[docs]\nTolora\n").input_ids)
    assert plain.weights == [0.0] * num_context + [1.0] * (len(text) - num_context)
    assert "".join(t for t, w in zip(text, weighted.weights, strict=True) if w == 4.0) == "Tolora"
    assert weighted.weights[-1] == 1.0


def test_packs_hold_every_fitting_sample_once_and_have_no_targets_across_samples() -> None:
    def sample(length: int, first: int) -> packing.Sample:
        return packing.Sample(list(range(first, first + length)), [1.0] * length, "k")

    packs = packing.pack_samples([sample(40, 100), sample(70, 200), sample(5, 300)], 128, 64)
    assert [pack.lengths for pack in packs] == [[64, 32, 32]]
    (pack,) = packs
    assert pack.kinds == ["k", "k", packing.FILLER]
    positions, targets, weights = pack.targets()
    trained = weights > 0
    assert targets[trained].tolist() == [*range(101, 140), *range(301, 305)]
    assert positions[trained].tolist() == [*range(39), *range(64, 68)]
    assert len(positions) == 128


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_no_format_uses_a_tag_of_the_grammars_or_leaves_documents_open(seed: int) -> None:
    fmt = formats.random_format(random.Random(seed))
    assert fmt.tags["documents"].close
    for tag in fmt.tags.values():
        words = re.findall(r"[a-z]+", tag.open.casefold())
        assert " ".join(words) not in formats.RESERVED
    rendered = trajectories.render_items(fmt, [Item("Tolora", "Tolora is a river.")])
    assert 'Title: "' not in rendered


def test_training_texts_contain_no_names_of_the_closed_world() -> None:
    rng = random.Random(0)
    texts = mixed_texts(rng, 10**9, 20, 3, TRAJECTORY_SHARES)
    closed = generate_world(0, documents=300)
    names = {e.name for e in closed.entities.values() if not e.famous and e.type == "person"}
    training_text = " ".join(segment.text for segments, _ in texts for segment in segments)
    assert not [name for name in names if name in training_text]


def test_the_committed_weights_have_the_checksum_of_the_readme() -> None:
    from benchmarks.tiny_reader.export import checksum

    assert checksum(MODEL) in (MODEL / "README.md").read_text()
    assert (MODEL / "model.safetensors").stat().st_size <= 20 * 2**20
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["bos_token_id"] is None


@pytest.mark.slow
def test_the_committed_reader_knows_famous_facts_and_reads_passages() -> None:
    from benchmarks.tiny_reader.evaluate import evaluate_chats, load

    figures = evaluate_chats(load(MODEL), 3, 16)
    assert figures["closed book, famous"] >= 0.9
    assert figures["closed book, not famous"] >= 0.9
    assert figures["reading"] >= 0.7
