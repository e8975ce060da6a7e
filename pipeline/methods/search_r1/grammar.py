"""Search-R1's grammar (arXiv 2503.09516), for imported outputs and as a baseline.

The format is followed when the parts come in the order that `SearchR1` shows, each part is closed
and not empty, nothing follows the answer, and the model text has no control token. The authors'
format reward (arXiv 2505.15117) also requires ``<think>`` around the reasoning after an information
block. Two thirds of real outputs omit the tags there, so this parser allows untagged reasoning.

Steps are read from every completed search with its information, also in malformed outputs. The
query becomes the step's subquery, the documents its context, and the reasoning after them its
summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pipeline.core.records import ContextItem, Span, Step
from pipeline.core.spans import SpannedText
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.document_lines import DocumentLayout, DocumentLines, parse_documents
from pipeline.rollout.grammars.tagged import TaggedGrammar, Transitions, reasoning


class SearchR1(DocumentLines, TaggedGrammar):
    """Search-R1's grammar::

        <think>..</think>
        <search>..</search>

        <information>Doc 1(Title: "..") ..
        Doc 2(Title: "..") ..</information>

        <think>..</think>
        <answer>..</answer>

    The rollout inserts the information block; the model writes everything else. ``max_steps`` is
    the budget of searches, ``special_tokens`` are the policy tokenizer's.
    """

    name: ClassVar[str] = "search-r1"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    search_tags: ClassVar[tuple[str, str]] = ("<search>", "</search>")
    observation_tags: ClassVar[tuple[str, str]] = ("<information>", "</information>")
    transitions: ClassVar[Transitions] = {
        ("start", "<think>"): "thinking",
        ("observed", "<think>"): "thinking",
        ("observed", "<search>"): "searching",
        ("observed", "<answer>"): "answering",
        ("thinking", "</think>"): "thought",
        ("thought", "<search>"): "searching",
        ("searching", "</search>"): "searched",
        ("thought", "<answer>"): "answering",
        ("answering", "</answer>"): "answered",
    }
    text_states: ClassVar[frozenset[str]] = frozenset(
        {"thinking", "observed", "searching", "answering"}
    )

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """``<information>`` with one line per document."""
        return f"\n\n<information>{self.item_lines(items)}</information>\n\n"

    def steps(
        self,
        output: str,
        observations: Sequence[tuple[int, int]],
        model_texts: Sequence[tuple[int, str]],
    ) -> list[Step]:
        """Each search with its documents; the reasoning after them is the step's summary."""
        steps = []
        for number, (start, end) in enumerate(observations):
            before, following = model_texts[number][1], model_texts[number + 1][1]
            search = self.final_search(before)
            if search is None or not search.group(1).strip():
                continue
            action = self.first_action_tag(following)
            steps.append(
                Step(
                    subquery=search.group(1).strip(),
                    context=parse_documents(self.observation_body(output[start:end]), self.layout),
                    summary=reasoning(following[: action.start() if action else None]),
                    think=reasoning(before[: search.start()]),
                )
            )
        return steps

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans: the first step's think, then queries, documents and summaries."""
        written = SpannedText()
        if steps:
            written.add(f"<think>{self.clean(steps[0].think)}</think>\n")
        for step in steps:
            written.add(f"<search>{self.clean(step.subquery)}</search>")
            written.add(self.observation(step.context, written.text), "observation")
            written.add(f"<think>{self.clean(step.summary)}</think>\n")
        if answer is not None:
            written.add(f"<answer>{self.clean(answer)}</answer>")
        return written.text, written.spans


def tool_format(layout: DocumentLayout) -> ToolFormat:
    """The search as a tool, whose results have ``layout``."""
    return ToolFormat(
        search_tool("search", "Search the collection for passages."),
        "subquery",
        lambda each: Step(
            subquery=each.query,
            context=parse_documents(each.result, layout),
            summary=each.after,
            think=each.before,
        ),
    )


GRAMMAR, TOOLS = SearchR1, tool_format(SearchR1.layout)
