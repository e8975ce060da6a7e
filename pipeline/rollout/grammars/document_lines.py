"""Retrieved items as lines of text.

Search-R1 and HiPRAG share the layout ``Doc n(Title: "..") ..``. `parse_documents` inverts
`DocumentLines.item_lines` up to whitespace. Text without such lines is parsed as one chunk without
a title. `parse_lines` reads the labelled lines of TeaRAG and ProGraph-R1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pipeline.core.records import ContextItem
from pipeline.core.sanitize import sanitize

_DOC = re.compile(r'^Doc [0-9]+ ?\(Title: (?:"(.*?)"|(.*?))\)', re.MULTILINE)


class DocumentLines:
    """The retrieved items of a grammar as documents, one line each."""

    special_tokens: tuple[str, ...]

    def sanitize_items(self, items: Sequence[ContextItem]) -> list[ContextItem]:
        """Sanitized copies; a ``")`` in a title, which would end the title early, is rewritten."""
        return [
            replace(
                item,
                title=sanitize(item.title, self.special_tokens).replace('")', "')"),
                text=sanitize(item.text, self.special_tokens),
            )
            for item in items
        ]

    def item_lines(self, items: Sequence[ContextItem]) -> str:
        """One line per sanitized item, numbered from 1."""
        return "\n".join(
            f'Doc {number}(Title: "{item.title}") {item.text}'
            for number, item in enumerate(self.sanitize_items(items), start=1)
        )


def parse_documents(text: str) -> list[ContextItem]:
    """The documents in the text between the tags of an observation."""
    text = text.strip()
    heads = list(_DOC.finditer(text))
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
