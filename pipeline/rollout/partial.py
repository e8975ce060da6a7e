"""A trajectory in progress: text, token ids, log-probabilities and spans.

Model segments and observations are appended in turn; `PartialTrajectory.finish` returns the
`Trajectory` record. Ids are spliced and never tokenized again (trl#5224). They are decoded once
more before the record is returned, so that a wrong loss mask cannot reach training (RAGEN#71).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import EngineError
from pipeline.core.formats import FormatName
from pipeline.core.records import (
    ContextItem,
    Question,
    Span,
    Stop,
    TokenCounts,
    Trajectory,
    Writer,
    asked,
)
from pipeline.core.spans import extend
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import decode, mismatch, observation_ids
from pipeline.rollout.conversations.chat_template import Frame
from pipeline.rollout.conversations.messages import Message
from pipeline.rollout.grammars.base import ParsedOutput


def stable_seed(*parts: str | int) -> int:
    """A seed in [0, 2^63), a hash of ``parts``."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass
class PartialTrajectory:
    """A trajectory in progress; fields without a comment are as in `Trajectory`."""

    question: Question
    sample: int
    seed: int
    prompt_ids: list[int]
    output: str = ""
    spans: list[Span] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    token_spans: list[Span] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    contexts: list[list[ContextItem]] = field(default_factory=list)  # items of each retrieval
    per_retrieval: list[int] = field(default_factory=list)  # tokens of each retrieval
    segments: int = 0  # number of model segments
    messages: list[Message] = field(default_factory=list)  # of a conversation with tool calls
    problem: str | None = None  # why the last turn of a conversation is malformed
    malformed_calls: int = 0  # that were answered by their errors
    other_calls: int = 0  # calls without a retrieval, which count as steps
    answers: list[str | None] = field(default_factory=list)  # to the last calls; None: items
    unread: list[ContextItem] | None = None  # items that the model reads next (Search-o1)
    refused: bool = False  # whether the last turn has calls beyond the budget

    def written(self) -> str:
        """The text of the policy and of the observations so far, without the chat template's."""
        pieces = (self.output[start:end] for start, end, writer in self.spans if writer != "frame")
        return "".join(pieces)

    def branched(self, sample: int, seed: int) -> PartialTrajectory:
        """A copy that continues as ``sample``."""
        values: dict[str, Any] = vars(self)
        lists = {name: [*value] for name, value in values.items() if isinstance(value, list)}
        return PartialTrajectory(**(values | lists | {"sample": sample, "seed": seed}))

    def append_segment(self, result: GenerationResult) -> None:
        """Append a model segment."""
        self.segments += 1
        self._append_text(result.text, "model")
        self._append_ids(result.token_ids, "model", result.logprobs)

    def _append_text(self, text: str, writer: Writer) -> None:
        self.output += text
        self.spans = extend(self.spans, len(text), writer)

    def _append_ids(
        self, ids: list[int], writer: Writer, logprobs: Sequence[float | None] | None = None
    ) -> None:
        self.token_ids += ids
        self.token_spans = extend(self.token_spans, len(ids), writer)
        self.logprobs += [None] * len(ids) if logprobs is None else logprobs

    def append_observation(self, text: str, tokenizer: Tokenizer) -> int:
        """Append observation text; returns its length in tokens.

        The recorded text is the decoded ids. A tokenizer that normalizes Unicode gives the model
        the normalized text, and the record holds the text that the model saw.
        """
        ids = observation_ids(tokenizer, text)
        self._append_text(decode(tokenizer, ids), "observation")
        self._append_ids(ids, "observation")
        return len(ids)

    def append_context(self, items: Sequence[ContextItem], text: str, tokenizer: Tokenizer) -> None:
        """Append a retrieval; ``text`` is the observation text of ``items``."""
        self.contexts.append(list(items))
        self.per_retrieval.append(self.append_observation(text, tokenizer))

    def append_frame(
        self,
        frame: Frame,
        contexts: Sequence[Sequence[ContextItem]],
        lengths: Sequence[int],
        tokenizer: Tokenizer,
    ) -> None:
        """Append what the chat template writes after a turn, with the results ``contexts`` inside.

        ``lengths`` are their tokens. The end-of-turn token before it was sampled, and becomes part
        of the text.
        """
        self._append_text(decode(tokenizer, self.token_ids[-1:]), "model")
        for start, end, writer in frame.spans:
            self._append_text(decode(tokenizer, frame.ids[start:end]), writer)
            self._append_ids(frame.ids[start:end], writer)
        self.contexts += map(list, contexts)
        self.per_retrieval += lengths

    def put_context_in_prompt(
        self, items: Sequence[ContextItem], prompt_ids: list[int], tokens: int
    ) -> None:
        """Replace the prompt by ``prompt_ids``, which show ``items`` in ``tokens`` tokens."""
        self.contexts.append(list(items))
        self.per_retrieval.append(tokens)
        self.prompt_ids = prompt_ids

    def finish(
        self,
        parsed: ParsedOutput,
        tokenizer: Tokenizer,
        *,
        grammar: str,
        format: FormatName,
        policy: str,
        stop: Stop,
    ) -> Trajectory:
        """The finished record, with the steps and the answer in ``parsed``.

        Raises EngineError when text, ids and spans disagree, which no input should be able to
        trigger.
        """
        trajectory_id = f"{self.question.question_id}/{self.sample}@{policy[:12]}"
        problem = mismatch(tokenizer, self.output, self.spans, self.token_ids, self.token_spans)
        if problem is not None:
            raise EngineError(
                f"trajectory {trajectory_id}: {problem}; this tokenizer decodes the parts and the "
                "whole to different texts, please report it"
            )
        # Parsed text has no ids or scores. Every step with a query has one recorded context, which
        # may be empty; steps without a query (HiPRAG's non-search steps) have none.
        recorded = iter(self.contexts)
        for step in parsed.steps:
            if step.retrieved:
                step.context = next(recorded, step.context)
        return Trajectory(
            trajectory_id=trajectory_id,
            **asked(self.question),
            grammar=grammar,
            format=format,
            output=self.output,
            messages=json.dumps(self.messages, ensure_ascii=False) if self.messages else "",
            policy=policy,
            sample=self.sample,
            seed=self.seed,
            spans=self.spans,
            prompt_ids=self.prompt_ids,
            token_ids=self.token_ids,
            token_spans=self.token_spans,
            logprobs=self.logprobs,
            **vars(parsed),
            stop=stop,
            malformed_calls=self.malformed_calls,
            tokens=TokenCounts.of(self.token_spans, self.per_retrieval),
        )
