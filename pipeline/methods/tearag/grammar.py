"""TeaRAG's grammar (arXiv 2511.05385, section 4.2, fig. 4, table 11).

The model writes up to and including ``<Reference>``, where generation stops. The rollout inserts
the evidence up to and including ``</Reference>`` and a newline. The format is followed when the
whole output is complete steps numbered 1..k, k at most 5, and one nonempty final answer, with
nothing but whitespace between the parts and no control token in the model text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pipeline.core.records import ContextItem, Span, Step
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.core.spans import SpannedText, covering
from pipeline.knowledge.retrieval.base import Query
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.base import (
    Finish,
    FormatError,
    Grammar,
    NextAction,
    ParsedOutput,
    Scanner,
)
from pipeline.rollout.grammars.document_lines import parse_lines

OPEN, CLOSE = "<Reference>", "</Reference>"
_STEP = re.compile(r"\s*Step[ \t]+([0-9]+):")
_FIELD = {
    label: re.compile(rf"\s*{label}:[ \t]*([^\n]*)")
    for label in ("Important entity", "Subquery", "Summary", "Final answer")
}
_OPEN = re.compile(rf"\s*{OPEN}")
_CHUNK = re.compile(r'Evidence [0-9]+: Title: "(.*?)" Text:(.*)')
_TRIPLET = re.compile(r"Evidence [0-9]+: Triplet:(.*)")


class _OpenReference(FormatError):
    """The output ends in an open reference: ``step`` waits for its documents."""

    def __init__(self, step: Step, offset: int) -> None:
        super().__init__(f"the reference is not closed at offset {offset}")
        self.step = step


@dataclass
class _Scanner(Scanner):
    """The parts of an output; ``cut_off`` is a final answer up to its control token."""

    cut_off: str | None = None

    def field(self, label: str) -> str:
        match = _FIELD[label].match(self.text, self.position)
        if match is None:
            raise self.error(f"expected {label + ':'!r}")
        control = first_control_token(match.group(1), self.special_tokens)
        if control is not None:
            if label == "Final answer":
                self.cut_off = match.group(1)[: control.start()].strip() or None
            raise FormatError(control_token_error(control, match.start(1)))
        value = match.group(1).strip()
        if not value:
            raise self.error(f"{label + ':'!r} is empty")
        if OPEN in value or CLOSE in value:
            raise self.error(f"a reference tag inside {label + ':'!r}")
        self.position = match.end()
        return value

    def step_head(self, number: int) -> Step:
        match = _STEP.match(self.text, self.position)
        if match is None or match.group(1) != str(number):
            raise self.error(f"expected 'Step {number}:'")
        self.position = match.end()
        entities = [name.strip() for name in self.field("Important entity").split("; ")]
        if not all(entities):
            raise self.error("an empty name in 'Important entity:'")
        return Step(entities=entities, subquery=self.field("Subquery"))

    def context(self, step: Step) -> list[ContextItem]:
        match = _OPEN.match(self.text, self.position)
        if match is None:
            raise self.error(f"expected {OPEN!r}")
        self.position = match.end()
        locate = self._recorded_observation if self.spans else self._find_observation
        start, end = locate(step)
        self.observations.append((start, end))
        self.position = end
        return parse_items(self.text[start:end].rstrip().removesuffix(CLOSE))

    def _recorded_observation(self, step: Step) -> tuple[int, int]:
        for start, end in self.recorded:
            if end > self.position:
                if self.text[self.position : start].strip():
                    raise self.error("the model wrote inside the reference")
                if not self.text[self.position : end].rstrip().endswith(CLOSE):
                    raise self.error("the observation does not close the reference")
                return max(start, self.position), end
        if self.text[self.position :].strip():
            raise self.error("the model wrote inside the reference")
        raise _OpenReference(step, self.position)

    def _find_observation(self, step: Step) -> tuple[int, int]:
        closing = self.text.find(CLOSE, self.position)
        if closing < 0:
            if self.text[self.position :].strip():
                raise self.error("the reference is not closed")
            raise _OpenReference(step, self.position)
        end = closing + len(CLOSE)
        return self.position, end + self.text.startswith("\n", end)

    def answer(self) -> str | None:
        """The final answer if it comes next, else None."""
        found = _FIELD["Final answer"].match(self.text, self.position)
        return None if found is None else self.field("Final answer")


def last_answer(output: str, spans: Sequence[Span]) -> str | None:
    """The text after the model's last "Final answer:", also in a malformed output, or None.

    The answer is looked for after the last observation (without ``spans``: after the last closing
    tag), so documents cannot answer. It ends at the end of its line.
    """
    observations = [end for _, end, writer in spans if writer == "observation"]
    start = observations[-1] if observations else 0 if spans else output.rfind(CLOSE) + 1
    answers = re.findall(r"Final answer:[ \t]*([^\n]*)", output[start:])
    return (answers[-1].strip() or None) if answers else None


def parse_items(observation: str) -> list[ContextItem]:
    """Context items of an observation; an unlabeled line is a chunk without a title."""
    return parse_lines(observation, _CHUNK, _TRIPLET, "chunk")


class TeaRag(Grammar):
    """TeaRAG's grammar::

        Step 1:
        Important entity: A; B
        Subquery: ...?
        <Reference>
        Evidence 1: Title: "..." Text: ...
        Evidence 2: Triplet: head relation tail
        </Reference>
        Summary: ...
        Final answer: ...

    The rollout inserts the evidence lines and ``</Reference>``; the model writes everything else.
    ``max_steps`` is the budget of steps, ``special_tokens`` are the policy tokenizer's.
    """

    name: ClassVar[str] = "tearag"
    stop: ClassVar[tuple[str, ...]] = (OPEN,)
    title_end: ClassVar[tuple[str, str]] = ('" Text:', "' Text:")

    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        """Retrieve for the step whose head ends ``output``, or finish.

        See `Grammar.next_action`.
        """
        # One step more, because the head of a step beyond the budget is read too.
        parsed, open_step, _ = replace(self, max_steps=max_steps + 1)._scan(output, ())
        if finish == "eos":
            return Finish("answer" if parsed.format_ok else "malformed")
        if open_step is None or len(parsed.steps) != steps_done:
            return Finish("malformed")
        if steps_done >= max_steps:
            return Finish("max_steps")
        return Query(open_step.subquery, tuple(open_step.entities))

    def item_lines(self, items: Sequence[ContextItem]) -> str:
        """Numbered evidence lines."""
        return "".join(
            f"Evidence {number}: Triplet: {item.text}\n"
            if item.kind == "triplet"
            else f'Evidence {number}: Title: "{item.title}" Text: {item.text}\n'
            for number, item in enumerate(self.sanitize_items(items), start=1)
        )

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """Numbered evidence lines, then the closing tag on a separate line."""
        start = "" if output.endswith("\n") else "\n"
        return f"{start}{self.item_lines(items)}{CLOSE}\n"

    def parse(self, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
        """Parse a whole output; see `Grammar.parse`. A control token ends the answer."""
        return self._scan(output, spans)[0]

    def spans(self, output: str) -> list[Span]:
        """Spans found by parsing; text after the first format error is model text."""
        return covering(len(output), self._scan(output, ())[2])

    def _scan(
        self, output: str, spans: Sequence[Span]
    ) -> tuple[ParsedOutput, Step | None, list[tuple[int, int]]]:
        """The parsed output, the step that waits for documents, and the observations."""
        scanner = _Scanner(output, spans, self.special_tokens)
        parsed, open_step = ParsedOutput(), None
        try:
            while (answer := scanner.answer()) is None:
                if len(parsed.steps) == self.max_steps:
                    raise scanner.error(f"no final answer after {self.max_steps} steps")
                step = scanner.step_head(len(parsed.steps) + 1)
                step.context = scanner.context(step)
                step.summary = scanner.field("Summary")
                parsed.steps.append(step)
            parsed.answer = answer
            if not parsed.steps:
                raise FormatError("a final answer without a step at offset 0")
            if output[scanner.position :].strip():
                raise scanner.error("text after the final answer")
            parsed.format_ok = True
        except _OpenReference as error:
            open_step, parsed.format_error = error.step, str(error)
        except FormatError as error:
            parsed.format_error = str(error)
            parsed.answer = parsed.answer or scanner.cut_off
        return parsed, open_step, scanner.observations

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans; the opening tag is model text, because eq. 4 trains on it.

        Fields are sanitized like documents, since a summary may quote a document.
        """
        written = SpannedText()
        for number, step in enumerate(steps, start=1):
            names = "; ".join(self.clean(name).replace("; ", ", ") for name in step.entities)
            written.add(f"Step {number}:\nImportant entity: {names}\n")
            written.add(f"Subquery: {self.clean(step.subquery)}\n{OPEN}")
            written.add(self.observation(step.context, written.text), "observation")
            written.add(f"Summary: {self.clean(step.summary)}\n")
        if answer is not None:
            written.add(f"Final answer: {self.clean(answer)}")
        return written.text, written.spans


GRAMMAR = TeaRag
_ENTITIES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "description": "the names that the query is about",
}
TOOLS = ToolFormat(
    search_tool("search", "Search passages and the knowledge graph.", entities=_ENTITIES),
    "subquery",
    lambda each: Step(
        entities=each.entities,
        subquery=each.query,
        context=parse_items(each.result),
        summary=each.after,
    ),
    bounded=True,
)
