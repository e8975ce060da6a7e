"""Trajectories as one assistant turn of text, in which the grammar's tags search and answer.

Input: sampled segments. Output: the queries of the grammar, and the observations whose ids are
spliced between the sampled ids. `OneTurn` answers without steps: the zero-shot baseline, and
single-round retrieval, which shows the items of the question in the prompt (TeaRAG, arXiv
2511.05385, 5.1.2; definition 3.1, table 7: Single-*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pipeline.config.policy import Prompt
from pipeline.core.formats import FormatName
from pipeline.core.records import Step
from pipeline.core.sanitize import first_control_token
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import observation_ids, prompt_ids
from pipeline.rollout.conversations.messages import Message
from pipeline.rollout.formats import (
    Format,
    Items,
    Next,
    OpenFormat,
    Steps,
    Turns,
    Written,
)
from pipeline.rollout.grammars.base import Finish, ParsedOutput
from pipeline.rollout.grammars.closed_book import parse_answer
from pipeline.rollout.partial import PartialTrajectory


class Tags(Format):
    """Text with the tags of the grammar."""

    name: ClassVar[FormatName] = "tags"

    def open(self, tokenizer: Tokenizer, max_steps: int) -> OpenFormat:
        return TaggedText(tokenizer, self.limited(tokenizer, max_steps))

    def example(self, question: str, steps: Steps, answer: str, turns: Turns) -> Written:
        text, spans = self.grammar.render(turns(steps), answer)
        return {"completion": text, "spans": spans}, self.grammar.parse(text, spans)


class TaggedText(OpenFormat):
    """The texts of one grammar under one tokenizer."""

    name: ClassVar[FormatName] = "tags"

    @property
    def stop(self) -> tuple[str, ...]:
        return self.grammar.stop

    def prompt(self, prompt: Prompt, question: str) -> tuple[list[Message], list[int]]:
        return [], prompt_ids(self.tokenizer, prompt.messages(question))

    def begin(self, trajectory: PartialTrajectory) -> None:
        opening = self.grammar.opening()
        if opening and not trajectory.output:
            trajectory.append_observation(opening, self.tokenizer)

    def next_action(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        done, output = len(trajectory.contexts), trajectory.output
        action = self.grammar.next_action(output, end.finish, done, most, trajectory.spans)
        if isinstance(action, str):
            trajectory.append_observation(action, self.tokenizer)
            return None
        return action if isinstance(action, Finish) else [action]

    def shown(self, trajectory: PartialTrajectory, items: Items) -> str:
        if trajectory.token_ids:
            return self.grammar.observation(items, trajectory.output)
        question = trajectory.question.question
        step = Step(entities=[question], subquery=question, search=question, context=list(items))
        text, spans = self.grammar.render([step], None)
        # The first span may be the opening of the first step, which is an observation too.
        return text[: next(end for _, end, writer in spans[1:] if writer == "observation")]

    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        for items in contexts:
            text, kept = self.shown(trajectory, items), self.grammar.sanitize_items(items)
            trajectory.append_context(kept, text, self.tokenizer)
        return True

    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        return self.grammar.parse(trajectory.output, trajectory.spans)


@dataclass(eq=False)
class OneTurn(TaggedText):
    """One segment, whose text is the answer; ``instruction`` is the prompt without items."""

    instruction: Prompt = field(default_factory=Prompt)

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the model that have the form of control tokens."""
        return self.grammar.chat_tags

    def begin(self, trajectory: PartialTrajectory) -> None:
        return

    def next_action(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        if first_control_token(trajectory.output, self.grammar.special_tokens, self.tags):
            return Finish("malformed")
        if end.finish == "length":
            return Finish("max_tokens")
        return self.following(trajectory, end, most)

    def following(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        """What follows a segment that a stop string or an end-of-sequence token ended."""
        return Finish("answer")

    def shown(self, trajectory: PartialTrajectory, items: Items) -> str:
        """The items as the part of the prompt before the question, sanitized, one line each."""
        lines = [
            f"[{number}] {item.title}: {item.text}" if item.title else f"[{number}] {item.text}"
            for number, item in enumerate(self.grammar.sanitize_items(items), start=1)
        ]
        return "\n".join(lines) + "\n\n" if lines else ""

    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        [items], question = contexts, trajectory.question.question
        text = self.shown(trajectory, items)
        _, prompt = self.prompt(self.instruction, text + question)
        shown = len(observation_ids(self.tokenizer, text))
        trajectory.put_context_in_prompt(self.grammar.sanitize_items(items), prompt, shown)
        return True

    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        """The answer and, with items in the prompt, one step with fields of every grammar."""
        parsed = parse_answer(self.grammar, trajectory.output, trajectory.spans)
        parsed.steps = [
            answered_step(trajectory.question.question, items, parsed.answer or "")
            for items in trajectory.contexts
        ]
        return parsed


def answered_step(query: str, items: Items, answer: str) -> Step:
    """A step with fields of every grammar."""
    return Step(
        entities=[query], subquery=query, search=query, query=query,
        context=list(items), summary=answer, conclusion=answer,
    )  # fmt: skip
