"""What the tiny reader can do, measured on worlds that it has not seen.

Purpose: the figures of its README. Input: a model directory. Output: exact match of recall among
distractors, of closed-book answers, and of whole paths in random formats with perfect retrieval.
Paths are decoded greedily, part by part: the tags of the format are given (nobody could guess
them), every content is the model's, and whether another step follows is taken from the probability
that it gives to the next step's first token. The evidence comes back only if the sub-question that
the model wrote names the right subject and is one of the wordings for the right relation.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.testbed.questions import Question
from pipeline.testbed.schema import NARY_RELATIONS, RELATIONS, Fact, NaryFact
from pipeline.testbed.world import World, generate_world
from pipeline.tiny_reader import prompts
from pipeline.tiny_reader.corpus import draw_question
from pipeline.tiny_reader.encode import chat_pieces
from pipeline.tiny_reader.formats import Format, random_format
from pipeline.tiny_reader.greedy import Greedy
from pipeline.tiny_reader.library import Library
from pipeline.tiny_reader.paths import render_items

WORLD_SEED = 7_000_000
_STEPS = 5


def asks_for(world: World, question: str, fact: Fact | NaryFact) -> bool:
    """Whether a sub-question is one of the wordings that ask for the fact."""
    if isinstance(fact, NaryFact):
        shown = {role: world.surface(value) for role, value in fact.arguments}
        return any(
            wording.format_map(shown) == question
            for wording in NARY_RELATIONS[fact.relation].questions
        )
    relation, head = RELATIONS[fact.relation], world.surface(fact.head)
    wordings = (*relation.questions, *(f"Name {noun}." for noun in relation.nouns))
    return any(wording.format(head=head) == question for wording in wordings)


@dataclass
class _Run:
    """One path while it is decoded."""

    question: Question
    shape: Format
    text: list[int]
    step: int = 0
    part: int = 0
    query: str = ""
    answer: str | None = None
    asked: int = 0
    over: bool = False
    trail: list[str] = field(default_factory=list)


def _stop(shape: Format, part: str) -> str:
    tag = shape.tags[part]
    return tag.close or "\n"


class PathEvaluation:
    """Decodes the paths of many questions of one world together."""

    def __init__(self, greedy: Greedy, library: Library, rng: random.Random) -> None:
        self.greedy, self.library, self.rng = greedy, library, rng

    def _start(self, question: Question) -> _Run:
        shape = replace(random_format(self.rng), merged=False)
        if shape.gap == " " and not all(tag.close for tag in shape.tags.values()):
            shape = replace(shape, gap="\n")
        system = prompts.looking_system(self.rng)
        pieces = chat_pieces([("system", system), ("user", question.text)])
        ids = [i for piece, _ in pieces for i in self.greedy.ids(piece)]
        ids += self.greedy.ids("<|im_start|>assistant\n")
        return _Run(question, shape, ids)

    def _write(self, runs: Sequence[_Run], openings: list[str], parts: list[str]) -> list[str]:
        """Give each run its opening and let it write one part; the contents."""
        for run, opening in zip(runs, openings, strict=True):
            run.text += self.greedy.ids(opening)
        stops = [(_stop(run.shape, part),) for run, part in zip(runs, parts, strict=True)]
        written = self.greedy.continue_([run.text for run in runs], stops, 96)
        contents = []
        for run, ids, (stop,) in zip(runs, written, stops, strict=True):
            content = self.greedy.tokenizer.decode(ids, skip_special_tokens=True)
            content = content.split(stop)[0].strip()
            contents.append(content)
            run.text += self.greedy.ids(content + (run.shape.pad if stop != "\n" else "") + stop)
            run.trail.append(content)
        return contents

    def _opening(self, run: _Run, part: str) -> str:
        shape = run.shape
        first = part == shape.before[0]
        head = shape.step.format(n=run.step + 1) + (shape.gap if shape.step else "")
        if first and run.step == 0 and shape.wrapper[0]:
            head = shape.wrapper[0] + shape.gap + head
        return (head if first else "") + shape.tags[part].open + shape.pad

    def _between(self, run: _Run) -> str:
        """What stands after a part that its stop string has ended."""
        gap = run.shape.gap
        return gap if run.shape.tags["query"].close else gap[1:]

    def _after(self, run: _Run, part: str) -> str:
        gap = run.shape.gap
        return gap if run.shape.tags[part].close else gap.removeprefix("\n")

    def decode(self, questions: Sequence[Question]) -> list[_Run]:
        """Whole paths, in the order of the questions."""
        runs = [self._start(question) for question in questions]
        for step in range(_STEPS):
            active = [run for run in runs if not run.over]
            if not active:
                break
            for position in range(3):
                here = [run for run in active if position < len(run.shape.before)]
                parts = [run.shape.before[position] for run in here]
                openings = [self._opening(run, p) for run, p in zip(here, parts, strict=True)]
                for run, part, text in zip(
                    here, parts, self._write(here, openings, parts), strict=True
                ):
                    if part == "query":
                        run.query = text
                    if not (part == run.shape.before[-1] and run.shape.asks_by_close):
                        run.text += self.greedy.ids(self._after(run, part))
            for run in active:
                self._retrieve(run)
            openings = [run.shape.tags["note"].open + run.shape.pad for run in active]
            self._write(active, openings, ["note"] * len(active))
            for run in active:
                close = run.shape.step_close
                tail = self._after(run, "note") + close + (run.shape.gap if close else "")
                run.text += self.greedy.ids(tail)
                run.step = step + 1
            self._decide(active)
        return runs

    def _retrieve(self, run: _Run) -> None:
        shape, world = run.shape, self.library.world
        asked = [s.fact for s in run.question.steps if asks_for(world, run.query, s.fact)]
        fact = asked[0] if asked else run.question.steps[0].fact
        run.asked += bool(asked)
        items = self.library.retrieve(
            self.rng, fact, self.rng.randint(3, 6), found=bool(asked)
        )
        documents = shape.tags["documents"]
        if shape.asks_by_close:
            block = shape.gap + documents.open
        else:
            run.text += self.greedy.ids(documents.open)
            block = ""
        block += f"\n{render_items(shape, items)}\n{documents.close}{shape.gap}"
        run.text += self.greedy.ids(block)

    def _decide(self, active: Sequence[_Run]) -> None:
        openings = [self._opening(run, run.shape.before[0]) for run in active]
        firsts = [self.greedy.ids(opening)[0] for opening in openings]
        chances = self.greedy.next_probability([run.text for run in active], firsts)
        ending = [run for run, chance in zip(active, chances, strict=True) if chance < 0.5]
        openings = []
        for run in ending:
            close = run.shape.wrapper[1]
            head = close + run.shape.gap if close else ""
            openings.append(head + run.shape.tags["answer"].open + run.shape.pad)
        for run, text in zip(ending, self._write(ending, openings, ["answer"] * len(ending)), strict=True):
            run.answer, run.over = text, True


def evaluate_paths(greedy: Greedy, seed: int, count: int) -> dict[str, float]:
    """Exact match by number of hops, comparisons apart, on one unseen world."""
    rng = random.Random(f"evaluation {seed}")
    world = generate_world(WORLD_SEED + seed)
    library = Library(world)
    figures: dict[str, float] = {}
    for name, kind, hops in (
        *((f"{n}-hop", "chain", n) for n in (1, 2, 3, 4)),
        *(("comparison", "comparison", 0), ("n-ary", "nary", 0)),
    ):
        questions: list[Question] = []
        while len(questions) < count:
            question = draw_question(world, rng, kind, hops)
            if question is not None:
                questions.append(question)
        runs = PathEvaluation(greedy, library, rng).decode(questions)
        right = sum(run.answer == run.question.answer for run in runs)
        figures[name] = round(right / count, 3)
        needed = sum(len(run.question.steps) for run in runs)
        figures[f"{name}: hops asked for"] = round(sum(run.asked for run in runs) / needed, 3)
    return figures


def evaluate_chats(greedy: Greedy, seed: int, count: int) -> dict[str, float]:
    """Exact match of the last answer of plain chats: reading, and with no text at all."""
    rng = random.Random(f"chats {seed}")
    world = generate_world(WORLD_SEED + seed)
    library = Library(world)
    cases: list[tuple[str, prompts.Chat]] = []
    while len(cases) < 3 * count:
        chat = prompts.reading(library, rng, most=6)
        if chat and chat[-1][0] == "assistant" and chat[-1][1] != prompts.DONT_KNOW:
            cases.append(("recall among passages", chat))
        chat = prompts.closed_book(library, rng)
        if chat and chat[-1][0] == "assistant":
            known = chat[-1][1] != prompts.DONT_KNOW
            cases.append(("closed book, famous" if known else "closed book, not famous", chat))
        cases.append(("repeating", prompts.repeating(library, rng)))
    rows = []
    for _, chat in cases:
        pieces = chat_pieces(chat[:-1])
        ids = [i for piece, _ in pieces for i in greedy.ids(piece)]
        rows.append(ids + greedy.ids("<|im_start|>assistant\n"))
    written = greedy.continue_(rows, [()] * len(rows), 80)
    hits: dict[str, list[bool]] = {}
    for (name, chat), ids in zip(cases, written, strict=True):
        text = greedy.tokenizer.decode(ids, skip_special_tokens=True)
        hits.setdefault(name, []).append(text == chat[-1][1])
    return {name: round(sum(found) / len(found), 3) for name, found in sorted(hits.items())}


def load(model: Path) -> Greedy:
    """The model of a directory, in fp32."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    return Greedy(network, AutoTokenizer.from_pretrained(model))


def main(arguments: list[str] | None = None) -> None:
    """Print the figures of a model directory as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args(arguments)
    greedy = load(options.model)
    figures = evaluate_chats(greedy, options.seed, options.count)
    figures |= evaluate_paths(greedy, options.seed, options.count)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
