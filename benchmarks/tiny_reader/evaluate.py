"""Evaluation of the tiny reader on worlds that are not in its training data.

Purpose: the figures of its README. Input: a model directory. Output: accuracies.

Trajectories in random formats are evaluated with teacher forcing, because a model cannot continue
in a format that its prompt does not describe. A hop is correct when every token of its answer is
the most probable one, given the true prefix. Answers at the start of a note or statement are
excluded, because the word order of the note is unpredictable. "whole" is the share of trajectories
in which every hop is correct. Chats (reading, closed book, repeating) are decoded greedily and
scored by exact match. `adapter_check` measures freely decoded trajectories in one grammar.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.tiny_reader import chats
from benchmarks.tiny_reader.encode import LabeledText, chat_segments, encode_samples
from benchmarks.tiny_reader.greedy import GreedyDecoder
from benchmarks.tiny_reader.packing import Pack, pack_samples
from benchmarks.tiny_reader.simulated_retriever import SimulatedRetriever
from benchmarks.tiny_reader.training_texts import trajectory_text
from benchmarks.tiny_reader.trajectories import ANSWER_WEIGHT, DECISION_WEIGHT
from pipeline.closed_world.schema import NARY_RELATIONS, RELATIONS, Fact, NaryFact
from pipeline.closed_world.world import World, generate_world

WORLD_SEED = 7_000_000
_PACK_TOKENS = 4096


def asks_for_fact(world: World, question: str, fact: Fact | NaryFact) -> bool:
    """Whether a one-hop question is one of the wordings that ask for the fact."""
    if isinstance(fact, NaryFact):
        surfaces = {role: world.surface(value) for role, value in fact.arguments}
        return any(
            wording.format_map(surfaces) == question
            for wording in NARY_RELATIONS[fact.relation].questions
        )
    relation, head = RELATIONS[fact.relation], world.surface(fact.head)
    wordings = (*relation.questions, *(f"Name {noun}." for noun in relation.nouns))
    return any(
        wording.format(head=head).replace("the the ", "the ") == question for wording in wordings
    )


class TeacherForcedResult(NamedTuple):
    """Correctness of every hop answer and of every decision in one trajectory."""

    kind: str
    answers: list[bool]
    decisions: list[bool]


def _runs(weights: Sequence[float], value: float) -> Iterator[tuple[int, int]]:
    """[start, end) of every run of tokens with the weight `value`."""
    start = None
    for position, weight in enumerate([*weights, 0.0]):
        if weight == value and start is None:
            start = position
        elif weight != value and start is not None:
            yield start, position
            start = None


def _score_pack(decoder: GreedyDecoder, pack: Pack) -> Iterator[TeacherForcedResult]:
    """The result of every sample of a pack."""
    import torch

    from pipeline.training.packed_attention import hidden_states

    ids_N = torch.from_numpy(pack.ids).long()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        hidden_ND = hidden_states(decoder.model.model, ids_N, pack.lengths)
        best_N = (hidden_ND @ decoder.model.lm_head.weight.T).argmax(-1)
    correct = (best_N[:-1] == ids_N[1:]).tolist()
    start = 0
    for length, kind in zip(pack.lengths, pack.kinds, strict=True):
        weights = pack.weights[start : start + length].tolist()
        answers, decisions = (
            [(start + low, start + high) for low, high in _runs(weights, weight)]
            for weight in (ANSWER_WEIGHT, DECISION_WEIGHT)
        )
        # An answer is predictable after a word, but not at the start of a note.
        predictable = [
            (low, high)
            for low, high in answers
            if any(map(str.islower, decoder.tokenizer.decode(int(pack.ids[low - 1]))))
        ]
        yield TeacherForcedResult(
            kind,
            [all(correct[low - 1 : high - 1]) for low, high in predictable],
            [all(correct[low - 1 : high - 1]) for low, high in decisions],
        )
        start += length


def evaluate_trajectories(decoder: GreedyDecoder, seed: int, count: int) -> dict[str, float]:
    """Accuracy of hop answers and of whole trajectories, by number of hops.

    Half of the prompts describe the format. For these the result also holds the accuracy of the
    decisions to take another step and to start the answer.

    Args:
        decoder: model and tokenizer.
        seed: of the unseen world and of the trajectories.
        count: number of trajectories.
    """
    from pipeline.training.packed_attention import ATTENTION, register_attention

    rng = random.Random(f"evaluation {seed}")
    retriever = SimulatedRetriever(generate_world(WORLD_SEED + seed))
    texts: list[LabeledText] = []
    while len(texts) < count:
        text = trajectory_text(retriever, rng, max_items=6, described=0.5)
        if text is not None:
            texts.append(text)
    register_attention()
    attention = decoder.model.config._attn_implementation
    decoder.model.config._attn_implementation = ATTENTION
    parts: dict[str, list[bool]] = {}
    wholes: dict[str, list[bool]] = {}
    samples = encode_samples(decoder.tokenizer, texts, use_span_weights=True)
    for pack in pack_samples(samples, _PACK_TOKENS, _PACK_TOKENS):
        for result in _score_pack(decoder, pack):
            kind = result.kind.removesuffix(" told")
            if result.answers:
                parts.setdefault(kind, []).extend(result.answers)
                wholes.setdefault(f"{kind} whole", []).append(all(result.answers))
            if result.decisions:
                parts.setdefault("decision to go on", []).extend(result.decisions[:-1])
                parts.setdefault("decision to stop", []).append(result.decisions[-1])
    decoder.model.config._attn_implementation = attention
    return _means(parts | wholes)


def evaluate_chats(decoder: GreedyDecoder, seed: int, count: int) -> dict[str, float]:
    """Exact match of the last answer of chats, by kind: reading, closed book, repeating.

    Args:
        decoder: model and tokenizer.
        seed: of the unseen world and of the chats.
        count: the evaluation draws about 3 `count` chats.
    """
    rng = random.Random(f"chats {seed}")
    retriever = SimulatedRetriever(generate_world(WORLD_SEED + seed))
    cases: list[tuple[str, chats.Chat]] = []
    while len(cases) < 3 * count:
        chat = chats.reading_chat(retriever, rng, max_items=6)
        if chat and chat[-1][0] == "assistant" and chat[-1][1] != chats.DONT_KNOW:
            cases.append(("reading", chat))
        chat = chats.closed_book_chat(retriever, rng)
        if chat and chat[-1][0] == "assistant":
            is_famous = chat[-1][1] != chats.DONT_KNOW
            cases.append(("closed book, famous" if is_famous else "closed book, not famous", chat))
        cases.append(("repeating", chats.repetition_chat(retriever, rng)))
    rows = []
    for _, chat in cases:
        ids = [i for segment in chat_segments(chat[:-1]) for i in decoder.ids(segment.text)]
        rows.append(ids + decoder.ids("<|im_start|>assistant\n"))
    completions = decoder.generate(rows, [()] * len(rows), 80)
    matches: dict[str, list[bool]] = {}
    for (name, chat), ids in zip(cases, completions, strict=True):
        text = decoder.tokenizer.decode(ids, skip_special_tokens=True)
        matches.setdefault(name, []).append(text == chat[-1][1])
    return _means(matches)


def _means(values: dict[str, list[bool]]) -> dict[str, float]:
    """Mean per name, rounded to three digits, in alphabetical order."""
    return {name: round(sum(group) / len(group), 3) for name, group in sorted(values.items())}


def load(model: Path) -> GreedyDecoder:
    """The model of a directory in fp32, with its tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=False)
    return GreedyDecoder(network, AutoTokenizer.from_pretrained(model, trust_remote_code=False))


def main(arguments: list[str] | None = None) -> None:
    """Print the figures of a model directory as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args(arguments)
    decoder = load(options.model)
    figures = evaluate_trajectories(decoder, options.seed, 2 * options.count)
    figures |= evaluate_chats(decoder, options.seed, options.count)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
