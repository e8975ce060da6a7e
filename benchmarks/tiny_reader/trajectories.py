"""Whole reasoning trajectories in random formats, the main training text of the tiny reader.

Input: a question, its planned hops (`planned_hops`) and a random format. Output: segments of text,
each written by the model or inserted as an observation, with loss weights.

Three weights differ from 1. A format's tags are unpredictable at their first occurrence unless the
prompt describes them. The few tokens of a hop's answer are the part that requires reading. The
start of another step or of the answer is the decision to continue or to stop.
"""

from __future__ import annotations

import random

from benchmarks.tiny_reader.encode import Segment
from benchmarks.tiny_reader.formats import Format
from benchmarks.tiny_reader.planned_hops import PlannedHop, comparison_remark, plan_hops
from benchmarks.tiny_reader.simulated_retriever import Item, SimulatedRetriever
from pipeline.closed_world.questions import Question

UNPREDICTABLE_WEIGHT = 0.1
ANSWER_WEIGHT = 4.0
DECISION_WEIGHT = 3.0
_THOUGHTS_FIRST = (
    "I need {noun}.",
    "First I have to find {noun}.",
    "Let me look for {noun}.",
    "To begin with: {noun}.",
    "What matters is {noun}.",
    "I want to know {noun}.",
)
_THOUGHTS_NEXT = (
    "Now I need {noun}.",
    "Next I have to find {noun}.",
    "Then let me look for {noun}.",
    "What is left is {noun}.",
    "Now for {noun}.",
    "With that I can ask for {noun}.",
)
_THOUGHTS_RETRY = (
    "I ask again in other words.",
    "Let me try another wording.",
    "Once more, asked differently: {noun}.",
    "I try again to find {noun}.",
)
_NOTES = (
    "{fact} So the answer is {answer}.",
    "{fact} Therefore {answer}.",
    "{fact} This gives {answer}.",
    "It says: {fact} That means {answer}.",
    "{fact} Answer of this part: {answer}.",
    "As {quoted}, it is {answer}.",
    "From [{quoted}] follows {answer}.",
    'We read "{quoted}", hence {answer}.',
    "({quoted}) => {answer}",
    "{quoted} -> {answer}",
    "{answer}, because {quoted}.",
    "{answer} ({quoted})",
    "The text tells that {quoted}; I conclude {answer}.",
    "{fact} {answer} it is.",
    "{answer}",
)
_NOTES_FROM_MEMORY = (
    "I know that {quoted}; so {answer}.",
    "{fact} I know this without looking: {answer}.",
    "From memory: {quoted}, hence {answer}.",
    "No need to look: {quoted}. It is {answer}.",
)
_NOTES_NOT_FOUND = (
    "None of this tells {noun}.",
    "The texts do not say it.",
    "Nothing here gives {noun}.",
    "This does not help.",
    "I found nothing on {noun}.",
    "It is not there.",
    "No passage answers this.",
)
_UNKNOWN_ANSWERS = ("unknown", "I do not know", "not found", "no answer found")


class SegmentWriter:
    """Collects text in the order of writing; adjacent text of one writer becomes one segment."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def add(
        self,
        text: str,
        by_model: bool,
        weight: float = 1.0,
        emphasis: tuple[str, float] = ("", 1.0),
    ) -> None:
        """Append text.

        Args:
            text: the text.
            by_model: whether the model writes it.
            weight: loss weight of the text.
            emphasis: a string whose first occurrence in the text has another weight, and the
                weight.
        """
        if not text:
            return
        before = ""
        span_weights: tuple[tuple[int, int, float], ...] = ()
        if self.segments and self.segments[-1].by_model == by_model:
            before, _, span_weights = self.segments.pop()
        spans = [(0, len(text), weight)] if weight != 1.0 else []
        start = text.find(emphasis[0]) if emphasis[0] else -1
        if start >= 0:
            spans.append((start, start + len(emphasis[0]), emphasis[1]))
        offset = len(before)
        shifted = tuple((offset + low, offset + high, value) for low, high, value in spans)
        self.segments.append(Segment(before + text, by_model, span_weights + shifted))


def _note(rng: random.Random, hop: PlannedHop, template: str, not_found_template: str) -> str:
    if not hop.answered:
        return not_found_template.format(noun=hop.noun)
    fact = hop.statement
    if hop.items is None:
        template = rng.choice(_NOTES_FROM_MEMORY)
    return template.format(fact=fact, quoted=fact.rstrip("."), answer=hop.answer)


def render_items(fmt: Format, items: list[Item]) -> str:
    """The retrieved items in the format, numbered from 1."""
    lines = []
    for number, item in enumerate(items, start=1):
        if item.title:
            body = fmt.document.format(title=item.title, text=item.text)
        else:
            body = fmt.triplet.format(triplet=item.text)
        label = fmt.item.format(n=number)
        lines.append(f"{label} {body}" if label else body)
    return fmt.item_gap.join(lines)


def write_trajectory(
    retriever: SimulatedRetriever,
    rng: random.Random,
    question: Question,
    fmt: Format,
    *,
    max_items: int,
    described: bool = False,
) -> list[Segment]:
    """The segments of the assistant's turn, with `ANSWER_WEIGHT` on the answers of the hops.

    Args:
        retriever: over the question's world.
        rng: source of randomness.
        question: with its steps.
        fmt: the trajectory's format.
        max_items: items per retrieval at most.
        described: whether the prompt describes the format. Then the first occurrences of its tags
            have the usual weight, and the decisions to continue or to stop `DECISION_WEIGHT`.
    """
    first_weight, decision_weight = (
        (1.0, DECISION_WEIGHT) if described else (UNPREDICTABLE_WEIGHT, 1.0)
    )
    use_memory = "thought" in fmt.before and rng.random() < 0.5
    hops, solved = plan_hops(
        retriever, rng, question.steps, use_memory=use_memory, max_items=max_items
    )
    note_template, not_found_template = rng.choice(_NOTES), rng.choice(_NOTES_NOT_FOUND)
    thoughts = tuple(
        rng.choice(options) for options in (_THOUGHTS_FIRST, _THOUGHTS_NEXT, _THOUGHTS_RETRY)
    )
    writer = SegmentWriter()
    writer.add(fmt.wrapper[0] + (fmt.gap if fmt.wrapper[0] else ""), True, first_weight)
    # With a merged format: the note for the next step's thought, and the answer in it.
    carried: tuple[str, str] = ("", "")
    used_tags: set[str] = set()

    def write(part: str, text: str, answer: str = "", *, is_decision: bool = False) -> None:
        """One part of a step: opening tag, text, closing tag."""
        tag = fmt.tags[part]
        tag_weight = 1.0 if part in used_tags else first_weight
        writer.add(tag.open, True, decision_weight if is_decision else tag_weight)
        used_tags.add(part)
        writer.add(fmt.pad + text, True, emphasis=(answer, ANSWER_WEIGHT))
        writer.add((fmt.pad if tag.close else "") + tag.close, True)

    for number, hop in enumerate(hops, start=1):
        header = fmt.step.format(n=number) + (fmt.gap if fmt.step else "")
        writer.add(header, True, decision_weight if number > 1 else first_weight)
        # Without a header, the tag of the first part is the decision to take another step.
        is_decision = number > 1 and not header
        thought_kind = 2 if hop.retry else int(number > 1)
        for part in fmt.before:
            if part == "plan":
                write(part, fmt.name_gap.join(hop.names), is_decision=is_decision)
            elif part == "thought":
                thought = thoughts[thought_kind].format(noun=hop.noun)
                text = f"{carried[0]} {thought}".strip()
                write(part, text, carried[1], is_decision=is_decision)
                carried = ("", "")
            elif hop.items is not None:
                write(part, hop.question, is_decision=is_decision)
            else:
                continue
            is_decision = False
            if not (part == fmt.before[-1] and fmt.query_close_retrieves):
                writer.add(fmt.gap, True)
        if hop.items is not None:
            tag = fmt.tags["documents"]
            if fmt.query_close_retrieves:
                writer.add(fmt.gap + tag.open, False)
            else:
                writer.add(tag.open, True, 1.0 if number > 1 else first_weight)
            writer.add(f"\n{render_items(fmt, hop.items)}\n{tag.close}{fmt.gap}", False)
        note = _note(rng, hop, note_template, not_found_template)
        answer = hop.answer if hop.answered else ""
        if number == len(hops) and solved:
            note = f"{note} {comparison_remark(question)}".strip()
        if fmt.merged and number < len(hops):
            carried = (note, answer)
        else:
            write("thought" if fmt.merged else "note", note, answer)
            writer.add(fmt.gap, True)
        writer.add(fmt.step_close + (fmt.gap if fmt.step_close else ""), True)
    writer.add(fmt.wrapper[1] + (fmt.gap if fmt.wrapper[1] else ""), True)
    answer = question.answer if solved else rng.choice(_UNKNOWN_ANSWERS)
    # Unless the prompt describes the format, the answer's tag is unpredictable.
    write("answer", answer, is_decision=described)
    return writer.segments
