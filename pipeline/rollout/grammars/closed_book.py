"""Answers without steps, of policies that may have been trained on a grammar.

If the text is a whole trajectory with an answer, the trajectory's answer counts; otherwise the text
itself is the answer, without the think block of a reasoning model. A control token ends the answer
and makes the output malformed, as in every grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.records import Span
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.rollout.grammars.base import Grammar, ParsedOutput


def parse_answer(grammar: Grammar, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
    """The answer and the verdict of an output, without steps."""
    control = first_control_token(output, grammar.special_tokens, grammar.chat_tags)
    text = output[: control.start()] if control else output
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    answer = grammar.parse(output, spans).answer or text.strip() or None
    error = None if answer else "no answer at offset 0"
    error = control_token_error(control) if control else error
    return ParsedOutput(answer=answer, format_ok=error is None, format_error=error)
