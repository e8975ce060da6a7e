"""HiPRAG's grammar (arXiv 2510.07794, 3.1, appendix C, algorithms 1 to 3).

One ``<think>`` block of one or more steps, then the answer. A step with ``<search>`` and
``<context>`` is a search step, and a step without both is a non-search step. The format is followed
(F = 1) when the output has exactly these parts with only whitespace between them, no grammar tag or
control token inside model text, and no empty query, context, conclusion or answer.

The rollout opens the first step, follows ``</search>`` with the context and ``<conclusion>``, and
closes the step after ``</conclusion>``. The model then opens another step, or closes ``</think>``
and answers. When the budget of steps is spent, the rollout closes ``</think>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from pipeline.core.records import ContextItem, Span, Step
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.core.spans import SpannedText, covering, pieces
from pipeline.knowledge.retrieval.base import Query
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.base import Finish, FormatError, NextAction, ParsedOutput, Scanner
from pipeline.rollout.grammars.document_lines import DocumentLines, parse_documents

OPENING = "<think>\n<step>\n<reasoning>"
_CLOSE_STEP = "</step>\n"
_FORCED_ANSWER = "</think>\n<answer>"
_TAG = re.compile(r"</?(?:think|step|reasoning|search|context|conclusion|answer)>")
_WHITESPACE = re.compile(r"\s*")
_QUERY = re.compile(r"<search>((?:(?!</?search>).)*)</search>\s*\Z", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)


class _Scanner(Scanner):
    """The parts of an output."""

    def skip_whitespace(self) -> None:
        self.position = _WHITESPACE.match(self.text, self.position).end()  # type: ignore[union-attr]

    def at_tag(self, tag: str) -> bool:
        """Skip whitespace; whether ``tag`` comes next."""
        self.skip_whitespace()
        return self.text.startswith(tag, self.position)

    def expect(self, tag: str) -> None:
        """Consume ``tag``, with the whitespace before it."""
        if not self.at_tag(tag):
            raise self.error(f"expected {tag!r}")
        self.position += len(tag)

    def content(self, name: str, *, required: bool = True) -> str:
        """The text up to the closing tag ``name``, which is consumed too."""
        start = self.position
        tag = _TAG.search(self.text, start)
        value = self.text[start : tag.start() if tag else len(self.text)]
        if control := first_control_token(value, self.special_tokens):
            raise FormatError(control_token_error(control, start))
        if tag is None:
            raise FormatError(f"'<{name}>' is not closed at offset {start}")
        if tag.group() != f"</{name}>":
            raise FormatError(f"{tag.group()!r} inside '<{name}>' at offset {tag.start()}")
        if required and not value.strip():
            raise FormatError(f"'<{name}>' is empty at offset {start}")
        self.position = tag.end()
        return value.strip()

    def step(self) -> Step:
        self.expect("<step>")
        self.expect("<reasoning>")
        if not self.observations:  # the rollout opens the first step
            self.observations.append((0, self.position))
        step = Step(reasoning=self.content("reasoning", required=False))
        if self.at_tag("<search>"):
            self.expect("<search>")
            step.search = self.content("search")
            step.context = self.context()
        else:
            self.expect("<conclusion>")
        step.conclusion = self.content("conclusion")
        start = self.position
        self.expect("</step>")
        self.skip_whitespace()
        self.observations.append((start, self.position))
        return step

    def context(self) -> list[ContextItem]:
        """The documents after ``</search>``; consumes the opening tag of the conclusion too."""
        start = self.position
        if not self.at_tag("<context>"):
            raise self.error("expected '<context>'")
        end = self._context_end()
        items = parse_documents(self.text[self.position + len("<context>") : end])
        if not items:
            raise FormatError(f"'<context>' is empty at offset {self.position}")
        self.position = end + len("</context>")
        self.expect("<conclusion>")
        self.observations.append((start, self.position))
        return items

    def _context_end(self) -> int:
        """The offset of ``</context>``; with recorded spans, the last one in this observation."""
        if self.spans:
            block_end = next(
                (end for start, end in self.recorded if start <= self.position < end), None
            )
            if block_end is None:
                raise self.error("the model wrote '<context>' itself")
            end = self.text.rfind("</context>", self.position, block_end)
        else:
            end = self.text.find("</context>", self.position)
        if end < 0:
            raise FormatError(f"'<context>' is not closed at offset {self.position}")
        return end

    def answer(self) -> str:
        self.expect("</think>")
        self.expect("<answer>")
        value = self.content("answer")
        self.skip_whitespace()
        if self.position < len(self.text):
            raise self.error("text after the answer")
        return value


def _stray_answer(scanner: _Scanner) -> str | None:
    """The last answer after the last context of a malformed output."""
    output = scanner.text
    observations = scanner.recorded if scanner.spans else scanner.observations
    contexts = [end for start, end in observations if "</context>" in output[start:end]]
    answer = (_ANSWER.findall(output[contexts[-1] if contexts else 0 :]) or [""])[-1]
    control = first_control_token(answer, scanner.special_tokens)
    return (answer[: control.start()] if control else answer).strip() or None


class HiPrag(DocumentLines):
    """HiPRAG's grammar::

        <think>
        <step>
        <reasoning>..</reasoning>
        <search>..</search>
        <context>
        Doc 1(Title: "..") ..
        </context>
        <conclusion>..</conclusion>
        </step>
        <step>
        <reasoning>..</reasoning>
        <conclusion>..</conclusion>
        </step>
        </think>
        <answer>..</answer>

    ``max_steps`` is the budget of steps (B of algorithm 1), ``special_tokens`` are the policy
    tokenizer's.
    """

    name: ClassVar[str] = "hiprag"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</conclusion>", "</answer>")

    def opening(self) -> str:
        """The opening tags of the first step."""
        return OPENING

    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        """Algorithm 1 at ``</search>``, ``</conclusion>`` or ``</answer>``.

        See `Grammar.next_action`. As in the paper, the format verdict has no effect here: a
        malformed trajectory may still answer, which eq. 1 rewards. One step may search several
        times, within ``max_steps`` searches in all.
        """
        spans = spans or self.spans(output)
        observations = [text.strip() for text in pieces(output, spans, "observation")]
        answer_forced = bool(observations) and observations[-1].endswith(_FORCED_ANSWER)
        segment = output[spans[-1][0] :] if spans and spans[-1][2] == "model" else ""
        text = "" if answer_forced or finish != "stop" else segment.rstrip()
        if text.endswith("</search>"):
            query = _QUERY.search(text)
            if query is None or not query.group(1).strip():
                return Finish("malformed")
            if steps_done >= max_steps:
                return Finish("max_steps")
            return Query(query.group(1).strip())
        if text.endswith("</conclusion>"):
            closed_steps = sum(text.startswith("</step>") for text in observations) + 1
            start = "" if output.endswith("\n") else "\n"
            forced = _FORCED_ANSWER if closed_steps >= max_steps else ""
            return start + _CLOSE_STEP + forced
        return Finish("answer" if self.parse(output, spans).answer is not None else "malformed")

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """``<context>`` with one line per document, and the opening of the conclusion."""
        start = "" if output.endswith("\n") else "\n"
        return f"{start}<context>\n{self.item_lines(items)}\n</context>\n<conclusion>"

    def parse(self, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
        """Parse a whole output; see `Grammar.parse`.

        A malformed output still has an answer when a nonempty ``<answer>`` follows its last
        context. A control token ends that answer.
        """
        return self._scan(output, spans)[0]

    def spans(self, output: str) -> list[Span]:
        """Spans found by parsing; text after the first format error is model text."""
        return covering(len(output), self._scan(output, ())[1])

    def _scan(
        self, output: str, spans: Sequence[Span]
    ) -> tuple[ParsedOutput, list[tuple[int, int]]]:
        """The parsed output, and the observations up to the first format error."""
        scanner, parsed = _Scanner(output, spans, self.special_tokens), ParsedOutput()
        try:
            scanner.expect("<think>")
            while not (parsed.steps and scanner.at_tag("</think>")):
                parsed.steps.append(scanner.step())
            closing = scanner.position
            parsed.answer = scanner.answer()
            parsed.format_ok = True
            if len(parsed.steps) == self.max_steps:  # the rollout closed <think>
                opened = output.index("<answer>", closing) + len("<answer>")
                start, _ = scanner.observations.pop()
                scanner.observations.append((start, opened))
        except FormatError as error:
            parsed.format_error = str(error)
            parsed.answer = _stray_answer(scanner)
        return parsed, scanner.observations

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans as a rollout produces them; tags inside fields are escaped.

        After ``max_steps`` steps ``<answer>`` is observation text, before that it is model text.
        """
        written = SpannedText()
        for number, step in enumerate(steps, start=1):
            if number == 1:
                written.add(OPENING, "observation")
            else:
                written.add("<step>\n<reasoning>")
            written.add(f"{self.clean(step.reasoning)}</reasoning>\n")
            if step.search is None:
                written.add("<conclusion>")
            else:
                written.add(f"<search>{self.clean(step.search)}</search>")
                written.add(self.observation(step.context, written.text), "observation")
            written.add(f"{self.clean(step.conclusion)}</conclusion>")
            forced = number == len(steps) == self.max_steps and answer is not None
            closing = "\n" + _CLOSE_STEP + (_FORCED_ANSWER if forced else "")
            written.add(closing, "observation")
        if answer is not None:
            written.add("" if written.text.endswith(_FORCED_ANSWER) else _FORCED_ANSWER)
            written.add(f"{self.clean(answer)}</answer>")
        return written.text, written.spans


GRAMMAR = HiPrag
TOOLS = ToolFormat(
    search_tool("search", "Search the collection for passages."),
    "search",
    lambda each: Step(
        reasoning=each.before,
        search=each.query,
        context=parse_documents(each.result),
        conclusion=each.after,
    ),
    step_lines=True,
)
