"""How well a LoRA adapter learns TeaRAG's grammar (arXiv 2511.05385) on the tiny reader.

Purpose: reading skill learned in random formats may not transfer to a new grammar; this measures
the transfer. Input: a model directory. Output: exact match by number of hops, after a LoRA (r = 8,
alpha = 32, on q, k, v, o) has trained on some thousand trajectories in TeaRAG's grammar. Decoding
is greedy and unconstrained, on an unseen world. Retrieval is simulated: a correct subquery always
retrieves its evidence, among distractors.

The training contexts are of two kinds. "retrieved" contexts are like the contexts of the test; the
figures then measure the reader's ability. "gold" contexts hold gold evidence only, as in supervised
fine-tuning. The figures then measure the starting point of the DPO rounds, because such an adapter
loses the ability to select evidence.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.tiny_reader.adapter_texts import (
    NUM_RETRIEVED,
    SYSTEM,
    Contexts,
    adapter_texts,
    context_items,
)
from benchmarks.tiny_reader.encode import END, chat_segments, encode_samples
from benchmarks.tiny_reader.evaluate import WORLD_SEED, asks_for_fact, load
from benchmarks.tiny_reader.greedy import GreedyDecoder
from benchmarks.tiny_reader.packing import pack_samples
from benchmarks.tiny_reader.simulated_retriever import SimulatedRetriever
from benchmarks.tiny_reader.training_texts import draw_question
from pipeline.closed_world.questions import Question
from pipeline.closed_world.world import generate_world
from pipeline.methods.tearag.grammar import TeaRag

# Training trajectories. 4,800 with retrieved contexts suffice for one hop (EM .97) but not for two
# (.76) and three (.74).
NUM_TRAJECTORIES: dict[Contexts, int] = {"retrieved": 14_400, "gold": 4_800}
_MAX_STEPS = 5
_PACK_TOKENS = 4096


def train_adapter(
    decoder: GreedyDecoder, count: int, seed: int, learning_rate: float, contexts: Contexts
) -> Any:
    """The model with a merged LoRA that was trained for one epoch on `count` trajectories."""
    import torch
    from peft import LoraConfig, get_peft_model

    from benchmarks.tiny_reader.training_loop import training_step
    from pipeline.training.packed_attention import ATTENTION, register_attention

    register_attention()
    torch.manual_seed(seed)
    model: Any = decoder.model
    attention = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    config = LoraConfig(
        r=8,
        lora_alpha=32,
        lora_dropout=0.0,  # as in configs/embedded.yaml
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    adapted: Any = get_peft_model(model, config)
    adapted.train()
    texts = adapter_texts(count, seed, contexts)
    packs = pack_samples(encode_samples(decoder.tokenizer, texts), _PACK_TOKENS, _PACK_TOKENS)
    random.Random(seed).shuffle(packs)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.001)
    for number, pack in enumerate(packs):
        for group in optimizer.param_groups:
            progress = number / len(packs)
            group["lr"] = learning_rate * min(1.0, (number + 1) / 20) * (1 - progress)
        training_step(adapted.base_model.model, pack)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.config._attn_implementation = attention
    return adapted.merge_and_unload().eval()


def roll_out(
    decoder: GreedyDecoder,
    retriever: SimulatedRetriever,
    questions: Sequence[Question],
    rng: random.Random,
) -> list[tuple[str | None, bool, int]]:
    """(answer, whether the format is valid, number of steps) of every question.

    Decoding is greedy, without constraints on the format. A subquery that asks for a fact of the
    question retrieves its evidence; any other subquery retrieves distractors only.
    """
    grammar = TeaRag()
    rows, texts = [], ["" for _ in questions]
    for question in questions:
        segments = chat_segments([("system", SYSTEM), ("user", question.text)])
        ids = [i for segment in segments for i in decoder.ids(segment.text)]
        rows.append(ids + decoder.ids("<|im_start|>assistant\n"))
    steps = [0 for _ in questions]
    active = list(range(len(questions)))
    while active:
        stops = [("<Reference>",)] * len(active)
        completions = decoder.generate([rows[n] for n in active], stops, 160)
        still_active = []
        for number, ids in zip(active, completions, strict=True):
            texts[number] += decoder.tokenizer.decode(ids).removesuffix(END)
            rows[number] += ids
            retrieves = "<Reference>" in decoder.tokenizer.decode(ids)
            if not retrieves or steps[number] == _MAX_STEPS:
                continue
            query = texts[number].rsplit("Subquery: ", 1)[-1].split("\n")[0].strip()
            facts = [step.fact for step in questions[number].steps]
            matches = [fact for fact in facts if asks_for_fact(retriever.world, query, fact)]
            items = retriever.retrieve(
                rng, (matches or facts)[0], NUM_RETRIEVED, with_evidence=bool(matches)
            )
            observation = grammar.observation(context_items(items), texts[number])
            texts[number] += observation
            rows[number] += decoder.ids(observation)
            steps[number] += 1
            still_active.append(number)
        active = still_active
    parsed = [grammar.parse(text) for text in texts]
    return [(p.answer, p.format_ok, s) for p, s in zip(parsed, steps, strict=True)]


def check(
    model: Path,
    *,
    count: int,
    seed: int,
    learning_rate: float,
    questions_per_kind: int,
    contexts: Contexts,
) -> dict[str, float]:
    """Train an adapter and evaluate it; see the module's docstring.

    Args:
        model: model directory.
        count: training trajectories.
        seed: of the worlds, the trajectories and the adapter.
        learning_rate: at its peak.
        questions_per_kind: test questions per number of hops, and comparisons.
        contexts: kind of the training contexts.

    Returns:
        Exact match, share of valid formats, and mean number of steps, per kind of question.
    """
    decoder = load(model)
    started = time.monotonic()
    adapted = GreedyDecoder(
        train_adapter(decoder, count, seed, learning_rate, contexts), decoder.tokenizer
    )
    figures: dict[str, float] = {
        "training trajectories": count,
        "seconds of training": round(time.monotonic() - started, 1),
        "questions of each kind": questions_per_kind,
    }
    rng = random.Random(f"adapter test {seed}")
    retriever = SimulatedRetriever(generate_world(WORLD_SEED + 100 + seed))
    for name, kind, hops in (
        *((f"{n}-hop", "chain", n) for n in (1, 2, 3, 4)),
        ("comparison", "comparison", 0),
    ):
        questions: list[Question] = []
        while len(questions) < questions_per_kind:
            question = draw_question(retriever.world, rng, kind, hops)
            if question is not None:
                questions.append(question)
        results = roll_out(adapted, retriever, questions, rng)
        correct = [q.answer == answer for q, (answer, _, _) in zip(questions, results, strict=True)]
        total = questions_per_kind
        figures[name] = round(sum(correct) / total, 3)
        figures[f"{name}: well formed"] = round(sum(ok for _, ok, _ in results) / total, 3)
        figures[f"{name}: steps"] = round(sum(s for _, _, s in results) / total, 2)
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Print the figures of `check` as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--count", type=int, help="training trajectories; default depends on --contexts"
    )
    parser.add_argument("--tests", type=int, default=100, help="test questions of each kind")
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--contexts", choices=get_args(Contexts), default="retrieved", help="training contexts"
    )
    options = parser.parse_args(arguments)
    default_count = NUM_TRAJECTORIES[options.contexts]
    figures = check(
        options.model,
        count=default_count if options.count is None else options.count,
        seed=options.seed,
        learning_rate=options.rate,
        questions_per_kind=options.tests,
        contexts=options.contexts,
    )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
