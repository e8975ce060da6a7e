"""What the formats of trajectories have in common: text with tags, or messages with tool calls.

`pipeline.engine.context.policy_format` builds a `Format` from the configuration. Stages ask it for
supervised examples, and the sampler for its `OpenFormat`, the same format under one tokenizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from pipeline.config.policy import Prompt
from pipeline.core.formats import FormatName
from pipeline.core.records import ContextItem, Step
from pipeline.knowledge.retrieval.base import Query
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import control_tokens
from pipeline.rollout.conversations.messages import Message
from pipeline.rollout.grammars.base import Finish, Grammar, ParsedOutput
from pipeline.rollout.partial import PartialTrajectory

Steps: TypeAlias = Sequence[Step]
Turns: TypeAlias = Callable[[Sequence[Step]], Sequence[Step]]
Items: TypeAlias = Sequence[ContextItem]
Next: TypeAlias = Finish | Sequence[Query] | None
Written: TypeAlias = tuple[dict[str, Any], ParsedOutput]


@dataclass(eq=False)
class OpenFormat(ABC):
    """A format under one tokenizer. All state of a trajectory is in the trajectory."""

    tokenizer: Tokenizer
    grammar: Grammar
    name: ClassVar[FormatName]

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a generated segment."""
        return ()

    @abstractmethod
    def prompt(self, prompt: Prompt, question: str) -> tuple[list[Message], list[int]]:
        """The messages of a conversation, none in a format of text, and the ids of the prompt."""

    def begin(self, trajectory: PartialTrajectory) -> None:
        """Append what the rollout writes before the first turn."""
        return

    def request(self, trajectory: PartialTrajectory) -> list[int]:
        """The ids that the next segment continues."""
        return trajectory.prompt_ids + trajectory.token_ids

    def append_segment(self, trajectory: PartialTrajectory, segment: GenerationResult) -> None:
        """Append a sampled segment."""
        trajectory.append_segment(segment)

    @abstractmethod
    def next_action(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        """What follows the segment ``end``: the queries, None for the next segment, or the end.

        ``most`` is the maximum of retrievals.
        """

    @abstractmethod
    def shown(self, trajectory: PartialTrajectory, items: Items) -> str:
        """The text of retrieved items, of which ``max_context_tokens`` limits the tokens."""

    @abstractmethod
    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        """Append the items of each query; whether the trajectory goes on.

        Before the first turn a step that asks the question is appended with them, which the policy
        does not write.
        """

    @abstractmethod
    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        """Steps, answer and verdict of a finished trajectory of at most ``most`` retrievals."""


@dataclass(frozen=True)
class Format(ABC):
    """A format with the grammar of one method, as the configuration describes both."""

    grammar: Grammar
    thinking: bool | None = None  # of the chat template
    malformed_calls: Literal["end", "answer"] = "end"
    name: ClassVar[FormatName]

    @property
    def identity(self) -> str:
        """What decides trajectories besides grammar, budgets and prompt, for keys of caches."""
        return ""

    @property
    def tools(self) -> str | None:
        """The JSON text of the declared tools; None in a format without tools."""
        return None

    @abstractmethod
    def open(self, tokenizer: Tokenizer, max_steps: int) -> OpenFormat:
        """The format under a tokenizer; raises InputError where its template does not suit."""

    @abstractmethod
    def example(self, question: str, steps: Steps, answer: str, turns: Turns) -> Written:
        """The fields of an `SftExample` after its prompt, and what the parser reads in them.

        ``turns`` gives the steps as the grammar renders them.
        """

    def template_note(self, open_tokenizer: Callable[[], Tokenizer]) -> str:
        """How the chat template rewrites earlier turns, else empty; raises as `open`."""
        return ""

    def limited(self, tokenizer: Tokenizer, max_steps: int) -> Grammar:
        """The grammar with a budget of steps and the control tokens of a policy."""
        return replace(self.grammar, max_steps=max_steps, special_tokens=control_tokens(tokenizer))
