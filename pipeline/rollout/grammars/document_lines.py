"""Retrieved items as lines of text.

Search-R1 and HiPRAG share the layout ``Doc n(Title: "..") ..``; R1-Searcher's is another
`DocumentLayout`. `parse_documents` inverts `DocumentLines.item_lines` up to whitespace. Text
without such lines is parsed as one chunk without a title. `parse_lines` reads the labelled lines of
TeaRAG and ProGraph-R1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.core.records import ContextItem
from pipeline.rollout.grammars.base import Grammar


@dataclass(frozen=True)
class DocumentLayout:
    """The layout of documents.

    ``head`` finds what stands before a text, with the title in group 1 or 2. ``line`` writes a
    document.
    """

    head: re.Pattern[str]
    line: str


SEARCH_R1 = DocumentLayout(
    re.compile(r'^Doc [0-9]+ ?\(Title: (?:"(.*?)"|(.*?))\)', re.MULTILINE),
    'Doc {number}(Title: "{item.title}") {item.text}',
)


class DocumentLines(Grammar):
    """A grammar that shows retrieved items as documents, one line each."""

    layout: ClassVar[DocumentLayout] = SEARCH_R1
    title_end: ClassVar[tuple[str, str]] = ('")', "')")

    def item_lines(self, items: Sequence[ContextItem]) -> str:
        """One line per sanitized item, numbered from 1."""
        return "\n".join(
            self.layout.line.format(number=number, item=item)
            for number, item in enumerate(self.sanitize_items(items), start=1)
        )


def parse_documents(text: str, layout: DocumentLayout = SEARCH_R1) -> list[ContextItem]:
    """The documents in the text between the tags of an observation."""
    text = text.strip()
    heads = list(layout.head.finditer(text))
    if not heads:
        return [ContextItem("chunk", "", "", text, 0.0)] if text else []
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return [
        ContextItem(
            "chunk", "", head.group(1) or head.group(2) or "", text[head.end() : end].strip(), 0.0
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def parse_lines(
    text: str,
    chunk: re.Pattern[str],
    triplet: re.Pattern[str],
    plain: Literal["chunk", "hyperedge"],
) -> list[ContextItem]:
    """The items of a text with one a line, by their labels; ``plain``: the kind without a label."""
    items = []
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        if match := triplet.fullmatch(line):
            items.append(ContextItem("triplet", "", "", match.group(1).strip(), 0.0))
        elif match := chunk.fullmatch(line):
            items.append(ContextItem("chunk", "", match.group(1), match.group(2).strip(), 0.0))
        else:
            items.append(ContextItem(plain, "", "", line, 0.0))
    return items
