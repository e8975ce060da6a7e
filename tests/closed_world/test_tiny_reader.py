"""The tiny reader: its tokenizer, the identity of the committed weights, and what they can do."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.closed_world.questions import chain_question
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


def test_the_committed_weights_have_the_checksum_of_the_readme() -> None:
    checksum = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
    assert checksum in (MODEL / "README.md").read_text()
    assert (MODEL / "model.safetensors").stat().st_size <= 20 * 2**20
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["bos_token_id"] is None


@pytest.mark.slow
def test_the_committed_reader_knows_famous_facts_and_reads_passages(tokenizer: Any) -> None:
    """Greedy answers to one-hop questions of a world that is not in the training data."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    rng, world = random.Random(0), generate_world(7_000_003)

    def right(facts: list[Any], answer: str | None = None, passages: int = 0) -> float:
        found = 0
        for fact in facts:
            question = chain_question(world, rng, (fact,))
            documents = []
            if passages:
                distractors = rng.sample(world.documents, passages - 1)
                documents = rng.sample([world.documents_of(fact.id)[0], *distractors], passages)
            texts = [f"{document.title}: {document.text}" for document in documents]
            content = "\n\n".join([*texts, question.text])
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True,
                return_tensors="pt", return_dict=True,
            )  # fmt: skip
            ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0]
            text = tokenizer.decode(ids[prompt.input_ids.shape[1] :], skip_special_tokens=True)
            found += text == (answer or question.answer)
        return found / len(facts)

    famous = [fact for fact in world.facts.values() if world.entities[fact.head].famous]
    others = [fact for fact in world.facts.values() if not world.entities[fact.head].famous]
    assert right(rng.sample(famous, 40)) >= 0.9
    assert right(rng.sample(others, 40), "I do not know.") >= 0.9
    assert right(rng.sample(others, 40), passages=3) >= 0.7
