"""The tiny reader: its training texts, its training, and the identity of the committed weights."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tiny_reader import (
    copying,
    encode,
    formats,
    packing,
    planned_hops,
    trajectories,
)
from benchmarks.tiny_reader.curriculum import PHASES, chunk_packs
from benchmarks.tiny_reader.simulated_retriever import Item, SimulatedRetriever
from benchmarks.tiny_reader.train import start_from
from benchmarks.tiny_reader.training_loop import WARMUP, learning_rate
from benchmarks.tiny_reader.training_texts import (
    TRAJECTORY_SHARES,
    draw_question,
    mixed_texts,
    trajectory_text,
)
from pipeline.closed_world.world import World, generate_world
from pipeline.core.errors import InputError

MODEL = Path(__file__).parents[2] / "data" / "tiny_reader"


@functools.cache
def _small_world() -> World:
    return generate_world(11, documents=300)


@pytest.fixture(scope="module")
def retriever() -> SimulatedRetriever:
    return SimulatedRetriever(_small_world())


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


def test_packed_attention_equals_attention_over_separate_sequences() -> None:
    import torch

    from benchmarks.tiny_reader.model import new_model
    from pipeline.training.cpu_attention import hidden_states

    model = new_model(64, eos=2, pad=0, seed=1)
    ids = torch.randint(3, 64, (700,), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed = hidden_states(model.model, ids, [600, 100])
        packed.float().square().sum().backward()
        gradient = model.model.layers[0].self_attn.k_proj.weight.grad.clone()
        model.zero_grad()
        model.config._attn_implementation = "sdpa"
        separate = [
            model.model(input_ids=part[None]).last_hidden_state[0]
            for part in (ids[:600], ids[600:])
        ]
        torch.cat(separate).float().square().sum().backward()
    expected = model.model.layers[0].self_attn.k_proj.weight.grad
    assert float((packed - torch.cat(separate)).detach().abs().max()) < 0.15
    assert float((gradient - expected).norm() / expected.norm()) < 0.1


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_copying_trains_only_tokens_that_occurred_earlier_in_the_sequence(seed: int) -> None:
    for sample in copying.copying_samples(random.Random(seed), 3072, 3, 96, 3):
        assert len(sample.ids) == len(sample.weights)
        for position, weight in enumerate(sample.weights):
            if weight:
                assert sample.ids[position] in sample.ids[:position]


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


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_described_format_names_the_tags_of_its_trajectory(seed: int) -> None:
    retriever, rng = SimulatedRetriever(_small_world()), random.Random(seed)
    texts = (trajectory_text(retriever, rng, max_items=3, described=1.0) for _ in range(20))
    segments, kind = next(text for text in texts if text is not None)
    assert kind.endswith(" told")
    system = segments[0].text
    completion = "".join(segment.text for segment in segments if segment.by_model)
    decisions = [
        segment.text[low:high]
        for segment in segments
        for low, high, weight in segment.span_weights
        if weight == trajectories.DECISION_WEIGHT
    ]
    # The prompt contains every string that starts another step or the answer, in that order. Only
    # the step numbers may differ.
    assert decisions
    for opening in decisions:
        assert re.sub("[0-9]+", "1", opening.strip()) in system
    assert system.rindex(decisions[-1]) >= max(
        system.index(re.sub("[0-9]+", "1", opening.strip())) for opening in decisions
    )
    weights = {weight for segment in segments for _, _, weight in segment.span_weights}
    assert trajectories.UNPREDICTABLE_WEIGHT not in weights
    assert completion.rindex(decisions[-1]) >= 0


def test_a_training_starts_from_a_model_directory_only_with_a_fresh_phase(tmp_path: Path) -> None:
    import torch

    (tmp_path / "work").mkdir()
    fresh = next(phase for phase in PHASES[1:] if phase.fresh)
    start_from(MODEL, fresh, tmp_path)
    state = torch.load(tmp_path / "work" / "state.pt", weights_only=True)
    assert (state["place"]["phase"], state["place"]["step"]) == (PHASES.index(fresh), 0)
    assert state["place"]["tokens"] > 0
    assert [learning_rate(fresh, step) for step in (0, WARMUP - 1)] == pytest.approx(
        [fresh.rate / WARMUP, fresh.rate], rel=0.05
    )
    with pytest.raises(InputError, match=r"--phase is recall; .* choose copying or deciding"):
        start_from(MODEL, PHASES[1], tmp_path)
    with pytest.raises(InputError, match="is missing; name a model directory"):
        start_from(tmp_path / "nowhere", fresh, tmp_path)


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=40)
def test_a_retrieval_states_the_fact_exactly_when_evidence_is_requested(
    retriever: SimulatedRetriever, seed: int, with_evidence: bool
) -> None:
    rng = random.Random(seed)
    fact = rng.choice(list(retriever.world.facts.values()))
    items = retriever.retrieve(rng, fact, 5, with_evidence=with_evidence)
    assert any(fact in retriever.stated_facts(item) for item in items) == with_evidence
    assert len({item.text for item in items}) == len(items)


def test_a_trajectory_retries_a_missed_retrieval_and_gives_up_after_three_attempts(
    retriever: SimulatedRetriever,
) -> None:
    rng = random.Random(4)
    seen = {"retry": False, "gave up": False}
    for _ in range(200):
        question = draw_question(retriever.world, rng, "chain", 2)
        assert question is not None
        hops, solved = planned_hops.plan_hops(
            retriever, rng, question.steps, use_memory=False, max_items=4
        )
        for earlier, later in itertools.pairwise(hops):
            assert later.retry == (not earlier.answered)
            if later.retry:
                seen["retry"] = True
                assert later.fact == earlier.fact
                assert later.question != earlier.question
        if not solved:
            seen["gave up"] = True
            assert [hop.answered for hop in hops[-3:]] == [False, False, False]
        else:
            assert hops[-1].answer == question.answer
    assert seen == {"retry": True, "gave up": True}


def test_a_chunk_of_the_curriculum_depends_only_on_phase_seed_rank_and_number(
    tokenizer: Any,
) -> None:
    for phase in (PHASES[0], PHASES[-1]):
        first, again, other = (chunk_packs(phase, 0, rank, 3, tokenizer) for rank in (0, 0, 1))
        assert all(np.array_equal(a.ids, b.ids) for a, b in zip(first, again, strict=True))
        assert not np.array_equal(first[0].ids, other[0].ids)


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


def test_the_committed_reader_knows_famous_facts_and_reads_passages() -> None:
    from benchmarks.tiny_reader.evaluate import evaluate_chats, load

    figures = evaluate_chats(load(MODEL), 3, 16)
    assert figures["closed book, famous"] >= 0.9
    assert figures["closed book, not famous"] >= 0.9
    assert figures["reading"] >= 0.7
