"""R1-Searcher's grammar (arXiv 2503.05592, 3.2, and its released evaluation code).

All reasoning and all searches are in one think block, which the answer follows. ``<think>`` is the
end of the released prompt, so outputs of the released models begin after it; one at the start of an
output is read too. The format is followed when the parts come in the order that `R1Searcher` shows,
no query and no answer is empty, nothing follows the answer, and the model text has no control
token. Departure: the authors' reward also limits the answer to ten words and punishes "Assistant:"
in the text, which are no parts of the order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from pipeline.core.records import ContextItem, Span, Step
from pipeline.core.spans import SpannedText
from pipeline.methods.search_r1.grammar import SearchR1, tool_format
from pipeline.rollout.grammars.document_lines import DocumentLayout
from pipeline.rollout.grammars.tagged import Transitions

_QUERY = ("<|begin_of_query|>", "<|end_of_query|>")
_DOCUMENTS = ("<|begin_of_documents|>", "<|end_of_documents|>")
_LAYOUT = DocumentLayout(  # the authors' other corpus has three spaces between title and text
    re.compile(r'^\([0-9]+\)(?:"?Title: (.*?) Text:|(.{0,300}?) {3})?', re.MULTILINE),
    "({number})Title: {item.title} Text: {item.text}",
)


class R1Searcher(SearchR1):
    """R1-Searcher's grammar::

        .. <|begin_of_query|> .. <|end_of_query|>

        <|begin_of_documents|>
        (1)Title: .. Text: ..
        <|end_of_documents|>

        ..</think>

        <answer>..</answer>

    The rollout inserts the documents; the model writes everything else.
    """

    name: ClassVar[str] = "r1-searcher"
    stop: ClassVar[tuple[str, ...]] = (_QUERY[1], "</answer>")
    chat_tags: ClassVar[tuple[str, ...]] = (*_QUERY, *_DOCUMENTS)
    search_tags: ClassVar[tuple[str, str]] = _QUERY
    observation_tags: ClassVar[tuple[str, str]] = _DOCUMENTS
    layout: ClassVar[DocumentLayout] = _LAYOUT
    title_end: ClassVar[tuple[str, str]] = (" Text:", " Text&#58;")
    transitions: ClassVar[Transitions] = {
        ("start", "<think>"): "thinking",
        ("thinking", _QUERY[0]): "searching",
        ("observed", _QUERY[0]): "searching",
        ("searching", _QUERY[1]): "searched",
        ("thinking", "</think>"): "thought",
        ("observed", "</think>"): "thought",
        ("thought", "<answer>"): "answering",
        ("answering", "</answer>"): "answered",
    }

    def first_state(self, output: str) -> str:
        """Without ``<think>`` at its start, an output begins inside the think block."""
        return "start" if output.lstrip().startswith("<think>") else "thinking"

    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """``<|begin_of_documents|>`` with one line per document."""
        return f"\n\n{_DOCUMENTS[0]}\n{self.item_lines(items)}\n{_DOCUMENTS[1]}\n\n"

    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Text and spans: the first step's think, then queries, documents and summaries."""
        written = SpannedText()
        written.add(self.clean(steps[0].think) if steps else "")
        for step in steps:
            written.add(f" {_QUERY[0]} {self.clean(step.subquery)} {_QUERY[1]}")
            written.add(self.observation(step.context, written.text), "observation")
            written.add(self.clean(step.summary))
        if answer is not None:
            written.add(f"</think>\n\n<answer> {self.clean(answer)} </answer>")
        return written.text, written.spans


GRAMMAR, TOOLS = R1Searcher, tool_format(_LAYOUT)
