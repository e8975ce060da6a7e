"""The parts of SFT data that the paper assigns to language models (TeaRAG 4.3.1, steps 1 to 3).

Input: hops. Output: the same hops with triplets extracted from the gold paragraph (paper:
Qwen2.5-14B-Instruct), with selected supporting triplets, or with rewritten questions (paper:
Qwen2.5-72B-Instruct). Unusable model output is counted, not raised. The hop then keeps its
original question, or has no triplets or no selection.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pipeline.core.records import Chunk, Message, Triplet
from pipeline.knowledge.graph.build import build_graph
from pipeline.knowledge.graph.extract import extract
from pipeline.llm.chat import Chat
from pipeline.training.sft_data.mentions import mention
from pipeline.training.sft_data.steps import Fact, Hop

_NUMBERS = re.compile(r"\[\s*(?:\d+\s*(?:,\s*\d+\s*)*(?:,\s*)?)?\]")
_SELECT = (
    "You are given a question, its answer and numbered facts. Name the facts that directly answer "
    "the question. Answer with one JSON list of their numbers and nothing else; [] if none does."
)
_REWRITE = (
    "Rewrite the question as one fluent, grammatical English question. Keep every name as it is "
    "and add nothing that the question does not say. Answer with the question alone. A question "
    "written as `name >> relation` asks for that relation of the name."
)


def extract_triplets(hops: Sequence[Hop], chat: Chat) -> int:
    """Replace each hop's triplets by the model's extracted triplets, in place.

    Returns the number of rejected triplets.
    """
    chunks: dict[str, Chunk] = {chunk.id: chunk for hop in hops for chunk in hop.chunks}
    graph, triplets = build_graph(extract(list(chunks.values()), chat=chat))
    by_chunk: dict[str, list[Triplet]] = {}
    for triplet in triplets:
        by_chunk.setdefault(triplet.chunk_id, []).append(triplet)
    for hop in hops:
        hop.facts = [fact for chunk in hop.chunks for fact in by_chunk.get(chunk.id, [])]
    return len(graph.rejects)


def select_supporting(
    hops: Sequence[Hop], chat: Chat, faults: Counter[str]
) -> dict[str, list[Fact]]:
    """Supporting facts by hop id, which the model selects from the hop's facts.

    Adds unusable answers to ``faults``. Hops without facts are left out.
    """
    with_facts = [hop for hop in hops if hop.facts]
    prompts = [(hop.id, _selection_prompt(hop)) for hop in with_facts]
    answers = chat.ask(prompts, max_tokens=64)
    selected: dict[str, list[Fact]] = {}
    for hop in with_facts:
        answer = answers[hop.id]
        numbers = parse_numbers(answer.text, len(hop.facts))
        if numbers is None:
            faults[f"selection: {answer.fault}" if answer.fault else "selection not readable"] += 1
        selected[hop.id] = [hop.facts[number - 1] for number in numbers or ()]
    return selected


def rewrite(hops: Sequence[Hop], chat: Chat, faults: Counter[str]) -> None:
    """Replace each hop's question by the model's wording, in place.

    Rejects a rewriting that is not a question, contains the answer, or loses a name, and adds it to
    ``faults``; the hop then keeps its question.
    """
    prompts = [
        (hop.id, [Message("system", _REWRITE), Message("user", hop.question)]) for hop in hops
    ]
    answers = chat.ask(prompts, max_tokens=128)
    for hop in hops:
        answer = answers[hop.id]
        text = " ".join(answer.text.split())
        leaks = mention(text, hop.answer) is not None and mention(hop.question, hop.answer) is None
        if answer.fault is not None:
            faults[f"rewriting: {answer.fault}"] += 1
        elif not text.endswith("?") or answer.finish == "length":
            faults["rewriting is no question"] += 1
        elif leaks or any(mention(text, name) is None for name in hop.earlier_answers):
            faults["rewriting leaks the answer" if leaks else "rewriting loses a name"] += 1
        else:
            hop.question = text


def parse_numbers(text: str, count: int) -> list[int] | None:
    """The distinct numbers in 1..count of the text's only JSON list; None without such a list."""
    lists = _NUMBERS.findall(text)
    if len(lists) != 1:
        return None
    digits = re.findall(r"\d+", lists[0])
    if any(len(number) > 9 for number in digits):  # int() refuses thousands of digits
        return None
    numbers = [int(number) for number in digits]
    if len(set(numbers)) != len(numbers) or any(not 1 <= number <= count for number in numbers):
        return None
    return numbers


def _selection_prompt(hop: Hop) -> list[Message]:
    facts = "\n".join(f"{number}. {fact.text}" for number, fact in enumerate(hop.facts, start=1))
    content = f"Question: {hop.question}\nAnswer: {hop.answer}\nFacts:\n{facts}"
    return [Message("system", _SELECT), Message("user", content)]
