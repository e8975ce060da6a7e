"""Search-R1's grammar (arXiv 2503.09516), for imported outputs and as a baseline.

A path is turns of ``<think>..</think>`` followed by ``<search>..</search>``, to which the
environment answers with ``<information>..</information>``, or by ``<answer>..</answer>``, which
ends it. The format is followed when these parts come in this order, none empty or left open, with
nothing after the answer and no control token in what the model wrote. The authors' format reward
(arXiv 2505.15117) also wants the reasoning after an information block inside ``<think>``; two thirds
of real outputs leave the tags out there, so here it may stand bare. Steps are read from any completed search with its information, whatever
the verdict: the query is the step's subquery, the documents its context, the reasoning that
follows its summary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.records import ContextItem, Span, Step
from pipeline.trajectory.grammar.base import MAX_STEPS, Finish, Move, OneTurn, Parsed, Retrieve
from pipeline.trajectory.grammar.control import control_fault, first_control
from pipeline.trajectory.grammar.documents import document_lines, neutral_items, read_documents
from pipeline.trajectory.grammar.neutralise import neutralise
from pipeline.trajectory.spans import covering

_INFORMATION = re.compile(r"(?<=</search>)\s*<information>.*?</information>\s*", re.DOTALL)
_TAG = re.compile(r"</?(?:think|search|information|answer)>")
_SEARCH = re.compile(r"<search>((?:(?!</?search>).)*)</search>\s*\Z", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ACTION = re.compile(r"<(?:search|answer)>")
_THINK_TAG = re.compile(r"</?think>")
# (state, tag) -> state; a tag that is not listed for the state is a fault.
_MOVES = {
    ("start", "<think>"): "thinking",
    ("informed", "<think>"): "thinking",
    ("informed", "<search>"): "searching",
    ("informed", "<answer>"): "answering",
    ("thinking", "</think>"): "thought",
    ("thought", "<search>"): "searching",
    ("searching", "</search>"): "searched",
    ("thought", "<answer>"): "answering",
    ("answering", "</answer>"): "answered",
}
_FILLED = frozenset({"searching", "answering"})
_FREE = frozenset({"thinking", "informed", *_FILLED})


@dataclass(frozen=True)
class SearchR1(OneTurn):
    """The grammar with its budget of searches and the policy's special tokens."""

    max_steps: int = MAX_STEPS
    special_tokens: tuple[str, ...] = ()
    name: ClassVar[str] = "search-r1"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")

    def after_segment(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> Move:
        """Any completed search retrieves, as in Search-R1; see Grammar.next."""
        search = _SEARCH.search(output) if finish == "stop" else None
        if search is None:
            answered = self.parse(output).answer is not None
            return Finish("answer" if answered else "malformed")
        if not search.group(1).strip():
            return Finish("malformed")
        if steps_done >= max_steps:
            return Finish("max_steps")
        return Retrieve(search.group(1).strip(), ())

    def shown(self, items: Sequence[ContextItem]) -> list[ContextItem]:
        """Neutralised copies; see Grammar.shown."""
        return neutral_items(items, self.special_tokens)

    def environment(self, items: Sequence[ContextItem], output: str) -> str:
        """``<information>`` with one line per document."""
        return f"\n\n<information>{document_lines(self.shown(items))}</information>\n\n"

    def parse(self, output: str, spans: Sequence[Span] = ()) -> Parsed:
        """Parse a whole text; see Grammar.parse. The last answer counts, as in Search-R1."""
        blocks = _blocks(output, spans)
        texts = _model_texts(output, blocks)
        answers = _ANSWER.findall(output[blocks[-1][1] if blocks else 0 :])
        error = _fault(output, blocks, self.special_tokens)
        return Parsed(
            steps=_steps(output, blocks, texts),
            answer=(answers[-1].strip() or None) if answers else None,
            format_ok=error is None,
            format_error=error,
        )

    def spans(self, output: str) -> list[Span]:
        """Information that follows a search is the environment's, blank space around it too."""
        return covering(len(output), _blocks(output, ()))

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans; the think of the first step, then queries, documents and summaries."""
        text, blocks = "", []
        if steps:
            text = f"<think>{self._clean(steps[0].think)}</think>\n"
        for step in steps:
            text += f"<search>{self._clean(step.subquery)}</search>"
            context = self.environment(step.context, text)
            blocks.append((len(text), len(text) + len(context)))
            text += f"{context}<think>{self._clean(step.summary)}</think>\n"
        if answer is not None:
            text += f"<answer>{self._clean(answer)}</answer>"
        return text, covering(len(text), blocks)

    def _clean(self, text: str) -> str:
        return neutralise(text, self.special_tokens)


def _blocks(output: str, spans: Sequence[Span]) -> list[tuple[int, int]]:
    if spans:
        return [(start, end) for start, end, writer in spans if writer == "environment"]
    return [match.span() for match in _INFORMATION.finditer(output)]


def _model_texts(output: str, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, str]]:
    """(offset, text) before, between and after the blocks: one more than there are blocks."""
    starts = [0, *(end for _, end in blocks)]
    ends = [*(start for start, _ in blocks), len(output)]
    return [(start, output[start:end]) for start, end in zip(starts, ends, strict=True)]


def _steps(
    output: str, blocks: Sequence[tuple[int, int]], texts: Sequence[tuple[int, str]]
) -> list[Step]:
    steps = []
    for number, (start, end) in enumerate(blocks):
        search = _SEARCH.search(texts[number][1])
        if search is None or not search.group(1).strip():
            continue
        following = texts[number + 1][1]
        action = _ACTION.search(following)
        steps.append(
            Step(
                subquery=search.group(1).strip(),
                context=_items(output[start:end]),
                summary=_reasoning(following[: action.start() if action else None]),
                think=_reasoning(texts[number][1][: search.start()]),
            )
        )
    return steps


def _reasoning(text: str) -> str:
    return _THINK_TAG.sub(" ", text).strip()


def _items(block: str) -> list[ContextItem]:
    """Documents of an information block."""
    return read_documents(
        block.strip().removeprefix("<information>").removesuffix("</information>")
    )


def _fault(
    output: str, blocks: Sequence[tuple[int, int]], special_tokens: tuple[str, ...]
) -> str | None:
    """The first departure from the format with its offset, or None."""
    state = "start"
    texts = _model_texts(output, blocks)
    for number, (offset, text) in enumerate(texts):
        at = 0
        for tag in [*_TAG.finditer(text), None]:
            between = text[at : tag.start() if tag else None]
            where = offset + at
            if control := first_control(between, special_tokens):
                return control_fault(control, where)
            if between.strip() and state not in _FREE:
                return f"text outside the tags at offset {where}"
            if tag is None:
                break
            if state in _FILLED and not between.strip():
                return f"nothing inside the tags at offset {where}"
            move = _MOVES.get((state, tag.group()))
            if move is None:
                return f"{tag.group()} after state {state!r} at offset {offset + tag.start()}"
            state, at = move, tag.end()
        if number < len(blocks):
            if state != "searched":
                return f"information without a search at offset {blocks[number][0]}"
            state = "informed"
    return None if state == "answered" else f"no answer at offset {len(output)}"
