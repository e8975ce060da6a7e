"""Answers without steps: the zero-shot baseline, and single-round retrieval in the prompt.

Both are one-turn generation (TeaRAG, arXiv 2511.05385, 5.1.2): variant ``none`` shows the question
alone, ``retrieval.rounds: prompt`` shows retrieved items before it (definition 3.1, table 7:
Single-*).

`ClosedBook` wraps another grammar, so that the baselines use the same rollout code. The model
writes one segment without stop strings. If that segment is a whole trajectory with an answer, the
trajectory's answer counts; otherwise the text itself is the answer. A control token ends the answer
and makes the output malformed, as in every grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.records import ContextItem, Span, Step
from pipeline.grammars.base import Finish, Grammar, NextAction, ParsedOutput
from pipeline.grammars.sanitize import control_token_error, first_control_token


@dataclass(frozen=True)
class ClosedBook(Grammar):
    """A grammar in which all model text is the answer; ``inner`` gives the prompt.

    ::

        Rome
    """

    inner: Grammar

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return self.inner.special_tokens

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt_context(self, items: Sequence[ContextItem]) -> str:
        """The items as the part of the prompt before the question, sanitized, one line each."""
        lines = [
            f"[{number}] {item.title}: {item.text}" if item.title else f"[{number}] {item.text}"
            for number, item in enumerate(self.sanitize_items(items), start=1)
        ]
        return "\n".join(lines) + "\n\n" if lines else ""

    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        return Finish("answer" if finish == "eos" else "max_tokens")

    def sanitize_items(self, items: Sequence[ContextItem]) -> list[ContextItem]:
        return self.inner.sanitize_items(items)

    def item_lines(self, items: Sequence[ContextItem]) -> str:
        return self.inner.item_lines(items)

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        return self.inner.observation(items, output)

    def parse(self, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
        control = first_control_token(output, self.special_tokens)
        text = output[: control.start()] if control else output
        answer = self.inner.parse(output, spans).answer or text.strip() or None
        error = None if answer else "no answer at offset 0"
        error = control_token_error(control) if control else error
        return ParsedOutput(answer=answer, format_ok=error is None, format_error=error)

    def spans(self, output: str) -> list[Span]:
        return [(0, len(output), "model")] if output else []

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        text = answer or ""
        return text, self.spans(text)
