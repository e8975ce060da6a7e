"""What the stand-in language models learn: the form of every answer that the pipeline asks of a model.

Input: the files of `tests.published.data_files`. Output: chats with the pipeline's own prompts. The
answers of extraction hold the answers of the cold start; trajectories have the form of their grammar, with
an answer drawn from the answers of a few questions. So one of several samples is right, and rewards differ.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.policy import Prompt
from pipeline.core.record_io import as_json
from pipeline.core.records import ContextItem, Message, Step
from pipeline.judges.cases import EquivalenceCase, SoundnessCase
from pipeline.judges.llm_judge import judge_prompt
from pipeline.knowledge.graph.extract import TRIPLETS, ExtractionPrompt
from pipeline.rollout.conversations.steps import tool_format, write
from pipeline.rollout.grammars import grammar
from pipeline.training.sft_data import by_model
from pipeline.training.sft_data.templates import fill, fluent

TRAJECTORIES = 48  # lessons of a policy
REWRITTEN = ", exactly?"  # ends every rewritten question


@dataclass(frozen=True)
class Lesson:
    """A prompt, and the pieces of the answer with whether the model writes them."""

    prompt: Sequence[Message]
    pieces: Sequence[tuple[str, bool]]

    @property
    def texts(self) -> Iterator[str]:
        yield from (message.content for message in self.prompt)
        yield from (piece for piece, _ in self.pieces)


@dataclass(frozen=True)
class Hop:
    """A hop of a question of the cold start, with the earlier answers filled in."""

    title: str
    question: str
    answer: str

    @property
    def fact(self) -> str:
        return f"{self.title} is {self.answer}."


@dataclass(frozen=True)
class Passage:
    title: str
    text: str

    @property
    def sentences(self) -> list[str]:
        return [f"{part.strip().rstrip('.')}." for part in self.text.split(". ") if part.strip()]


def read_passages(data: Path) -> list[Passage]:
    """The passages of the corpus table."""
    with (data / "psgs_w100.tsv").open(encoding="utf-8", newline="") as file:
        return [Passage(row["title"], row["text"]) for row in csv.DictReader(file, delimiter="\t")]


def read_questions(data: Path) -> list[tuple[str, str]]:
    """Question and answer of the files from which trajectories are sampled."""
    pairs = []
    for line in (data / "nq/train.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        pairs.append((record["question"], record["golden_answers"][0]))
    for name in ("hotpot_train_v1.1.json", "2wikimultihopqa/train.json"):
        for record in json.loads((data / name).read_text(encoding="utf-8")):
            pairs.append((record["question"], record["answer"]))
    return pairs


def extraction(data: Path, prompt: ExtractionPrompt, rng: random.Random) -> list[Lesson]:
    """Extraction of triplets or of facts.

    The answer is the same for all passages: facts that hold the answers of all questions of the cold
    start, so that its examples can be made.
    """
    hops = {(hop.title, hop.answer): hop for hop in _hops(data)}.values()
    answer: list[object]
    if prompt is TRIPLETS:
        answer = [[hop.title, "is", hop.answer] for hop in hops]
    else:
        answer = [[hop.fact, [hop.title, hop.answer]] for hop in hops]
    written = json.dumps(answer, ensure_ascii=False)
    return [
        Lesson(prompt.messages(passage.title, passage.text), [(written, True)])
        for passage in rng.sample(read_passages(data), TRAJECTORIES // 2)
    ]


def selection_and_rewriting(data: Path, rng: random.Random) -> list[Lesson]:
    """Selection of the first fact, and rewriting of the hops' questions, which are learned by heart."""
    hops = _hops(data)
    lessons = []
    for hop in hops:
        prompt = [Message("system", by_model._REWRITE), Message("user", hop.question)]
        lessons.append(Lesson(prompt, [(rewritten(hop.question), True)]))
    for hop in hops:
        facts = "\n".join(f"{n}. {hop.answer} is number {n}" for n in range(1, rng.randint(2, 6)))
        content = f"Question: {hop.question}\nAnswer: {hop.answer}\nFacts:\n{facts}"
        selection = [Message("system", by_model._SELECT), Message("user", content)]
        lessons.append(Lesson(selection, [("[1]", True)]))
    return lessons


def rewritten(question: str) -> str:
    """The rewriting that the stand-in for Qwen2.5-72B learns."""
    return f"{question.rstrip('?')}{REWRITTEN}"


def closed_book(data: Path) -> list[Lesson]:
    """Questions alone, as HiPRAG asks them of the policy."""
    return [
        Lesson([Message("user", question)], [(answer, True)])
        for question, answer in read_questions(data)
    ]


def judging(data: Path, rng: random.Random) -> list[Lesson]:
    """Verdicts on steps of both kinds, which depend on the letter that the conclusion names first."""
    known = read_questions(data) + [(hop.question, hop.answer) for hop in _hops(data)]
    lessons = []
    for question, answer in known * 2:
        closed_book = rng.choice(known)[1]
        equal = EquivalenceCase(question, closed_book, f"It is {answer}.")
        for case in (equal, SoundnessCase("I know the rest.", f"It is {answer}.")):
            verdict = f"<answer>{ord(answer[0]) % 2 == 0}</answer>"
            lessons.append(Lesson(judge_prompt(case), [(verdict, True)]))
    return lessons


def trajectories(
    data: Path, method: str, prompt: Prompt, kind: str, rng: random.Random
) -> list[Lesson]:
    """Trajectories of one or two steps in the grammar; ``kind`` is that of the retrieved items."""
    policy, lessons = grammar(method), []
    for question, steps, answer in _drawn(data, method, kind, rng):
        if method == "prograph":
            steps.append(Step(think=f"I know that it is {answer}."))
        text, spans = policy.render(steps, answer)
        pieces = [(text[start:end], writer == "model") for start, end, writer in spans]
        lessons.append(Lesson(prompt.messages(question), pieces))
    return lessons


def conversations(
    data: Path, method: str, prompt: Prompt, kind: str, rng: random.Random
) -> list[list[dict[str, Any]]]:
    """The same as messages with tool calls."""
    policy = grammar(method)
    return [
        [
            *map(as_json, prompt.messages(question)),
            *write(tool_format(method), steps, answer, policy.item_lines),
        ]
        for question, steps, answer in _drawn(data, method, kind, rng)
    ]


def _drawn(
    data: Path, method: str, kind: str, rng: random.Random
) -> Iterator[tuple[str, list[Step], str]]:
    """Questions with steps and an answer.

    A trajectory searches for the answer to one of four questions, whichever question it was asked. Half of
    TeaRAG's search for the answer to their own, because its pairs need right answers in a single step.
    """
    questions, passages = read_questions(data), read_passages(data)
    known = 0.5 if method == "tearag" else 0.0
    for number in range(TRAJECTORIES):
        question, own = questions[number % len(questions)]
        items = _items(kind, rng.sample(passages, rng.choice((1, 2))))
        subquery, answer = rng.choice(questions[2:6])  # two of NQ, two of HotpotQA
        if known and rng.random() < known:
            subquery, answer = question, own
        steps = [
            _step(method, subquery, answer, items, first=n == 0)
            for n in range(rng.choice((1, 1, 2)))
        ]
        yield question, steps, answer


def _hops(data: Path) -> list[Hop]:
    """The hops of the cold start's questions."""
    text = (data / "musique_ans_v1.0_train.jsonl").read_text(encoding="utf-8")
    found = []
    for record in map(json.loads, text.splitlines()):
        steps = record["question_decomposition"]
        titles = {paragraph["idx"]: paragraph["title"] for paragraph in record["paragraphs"]}
        answers = [step["answer"] for step in steps]
        for number, step in enumerate(steps):
            question = fill(step["question"], answers[:number])
            assert question is not None
            title = titles[step["paragraph_support_idx"]]
            found.append(Hop(title, fluent(question), step["answer"]))
    return found


def _items(kind: str, passages: Sequence[Passage]) -> list[ContextItem]:
    items = []
    for passage in passages:
        if kind == "hyperedge":
            items.append(ContextItem("hyperedge", "", "", passage.sentences[0], 1.0))
        else:
            items.append(ContextItem("chunk", "", passage.title, passage.text, 1.0))
    return items


def _step(method: str, question: str, answer: str, items: list[ContextItem], first: bool) -> Step:
    if method == "tearag":
        return Step(entities=[answer], subquery=question, context=items, summary=f"It is {answer}.")
    if method == "hiprag":
        search = question if first else None
        return Step(
            reasoning="I need this." if first else "I know the rest.",
            search=search,
            context=items if first else [],
            conclusion=f"It is {answer}.",
        )
    if method == "search-r1":
        found = f"It is {answer}."
        return Step(think="I need this.", subquery=question, context=items, summary=found)
    return Step(think="I need this.", query=question, context=items)
