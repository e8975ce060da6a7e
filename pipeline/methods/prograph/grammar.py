"""ProGraph-R1's grammar (3.3), which is Graph-R1's (arXiv 2507.21892).

The format is followed when every query and the answer come directly after a closed ``<think>``,
neither is empty, all text is inside the tags, nothing follows the answer, and the model text has no
control token. The last turn, from the last knowledge block to the answer, is a step without a
query, because step progress (eq. 11) is measured over it too.

A hyperedge is a line of plain text; the line of a triplet starts with ``Triplet:``, and the line of
a passage is ``Title: "..." Text: ...``. Graph-R1's outputs hold JSON with ``<knowledge>`` and
``<coherence>`` in their place, which is read as hyperedges with scores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pipeline.core.records import ContextItem, Span, Step
from pipeline.core.spans import SpannedText
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.document_lines import parse_lines
from pipeline.rollout.grammars.tagged import TaggedGrammar, Transitions, reasoning

_CHUNK = re.compile(r'Title: "(.*?)" Text:(.*)')
_TRIPLET = re.compile(r"Triplet:(.*)")
_LABEL = re.compile(r"\s*(?:Title|Triplet):")


class ProGraph(TaggedGrammar):
    """ProGraph-R1's grammar::

        <think> ... </think>
        <query> ... </query>
        <knowledge>
        one fact per line
        </knowledge>
        <think> ... </think>
        <answer> ... </answer>

    The model writes up to ``</query>``, where generation stops, and the rollout inserts the
    knowledge block. ``max_steps`` is the budget of queries, ``special_tokens`` are the policy
    tokenizer's.
    """

    name: ClassVar[str] = "prograph"
    stop: ClassVar[tuple[str, ...]] = ("</query>", "</answer>")
    title_end: ClassVar[tuple[str, str]] = ('" Text:', "' Text:")
    search_tags: ClassVar[tuple[str, str]] = ("<query>", "</query>")
    observation_tags: ClassVar[tuple[str, str]] = ("<knowledge>", "</knowledge>")
    transitions: ClassVar[Transitions] = {
        ("start", "<think>"): "thinking",
        ("observed", "<think>"): "thinking",
        ("thinking", "</think>"): "thought",
        ("thought", "<query>"): "searching",
        ("searching", "</query>"): "searched",
        ("thought", "<answer>"): "answering",
        ("answering", "</answer>"): "answered",
    }
    text_states: ClassVar[frozenset[str]] = frozenset({"thinking", "searching", "answering"})

    def sanitize_items(self, items: Sequence[ContextItem]) -> list[ContextItem]:
        """Sanitized copies, each of which is parsed as an item of its kind."""
        return [
            replace(item, text=_escape_label(item.text)) if item.kind == "hyperedge" else item
            for item in super().sanitize_items(items)
        ]

    def item_lines(self, items: Sequence[ContextItem]) -> str:
        """One line per item."""
        return "".join(_line(item) + "\n" for item in self.sanitize_items(items))

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """``<knowledge>`` with one line per item."""
        start = "" if output.endswith("\n") else "\n"
        return f"{start}<knowledge>\n{self.item_lines(items)}</knowledge>\n"

    def steps(
        self,
        output: str,
        observations: Sequence[tuple[int, int]],
        model_texts: Sequence[tuple[int, str]],
    ) -> list[Step]:
        """Each query with its knowledge, and the turn that answers."""
        steps = []
        for (start, end), (_, text) in zip(observations, model_texts, strict=False):
            query = self.final_search(text)
            if query is None or not query.group(1).strip():
                continue
            body = self.observation_body(output[start:end])
            steps.append(
                Step(
                    think=reasoning(text[: query.start()]),
                    query=query.group(1).strip(),
                    knowledge=body,
                    context=parse_items(body),
                )
            )
        last = model_texts[-1][1]
        action = self.first_action_tag(last)
        if action is not None and action.group() == "<answer>":
            steps.append(Step(think=reasoning(last[: action.start()])))
        return steps

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans; a step without ``context`` renders its ``knowledge`` line by line."""
        written = SpannedText()
        for step in steps:
            written.add(f"<think>{self.clean(step.think)}</think>\n")
            if step.query is None:
                continue
            written.add(f"<query>{self.clean(step.query)}</query>")
            items = step.context or parse_items(step.knowledge)
            written.add(self.observation(items, written.text), "observation")
        if answer is not None:
            written.add(f"<answer>{self.clean(answer)}</answer>")
        return written.text, written.spans


def _escape_label(text: str) -> str:
    """A fact with its label or brace escaped if it would parse as another kind of item."""
    if text.lstrip().startswith("{"):
        return text.replace("{", "&#123;", 1)
    label = _LABEL.match(text)
    return text if label is None else f"{text[: label.end() - 1]}&#58;{text[label.end() :]}"


def _line(item: ContextItem) -> str:
    if item.kind == "chunk":
        return f'Title: "{item.title}" Text: {item.text}'
    return f"Triplet: {item.text}" if item.kind == "triplet" else item.text


def parse_items(body: str) -> list[ContextItem]:
    """Items of a knowledge block."""
    if (results := _parse_graph_r1(body)) is not None:
        return results
    return parse_lines(body, _CHUNK, _TRIPLET, "hyperedge")


def _parse_graph_r1(body: str) -> list[ContextItem] | None:
    """Items of ``{"results": [{"<knowledge>": fact, "<coherence>": score}]}``, else None.

    A score that is not finite becomes 0, because records hold finite numbers alone.
    """
    if not body.startswith("{"):
        return None
    try:
        results = json.loads(body)["results"]
        scored = [(str(each["<knowledge>"]), float(each["<coherence>"])) for each in results]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return [
        ContextItem("hyperedge", "", "", fact, score if math.isfinite(score) else 0.0)
        for fact, score in scored
    ]


GRAMMAR = ProGraph
TOOLS = ToolFormat(
    search_tool("search_graph", "Search the hypergraph for facts."),
    "query",
    lambda each: Step(
        think=each.before,
        query=each.query,
        knowledge=each.result,
        context=parse_items(each.result),
    ),
    answer_step=True,
)
