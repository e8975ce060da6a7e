"""Separate the policy's text from retrieved text in the output of another system.

Other systems insert documents unchanged, so a document may hold any text: chat turns, closing tags,
whole answers. Input: the text of one output, which may begin with its chat prompt. Output: the text
after the prompt, and the character ranges of the retrieved blocks in it. Four rules keep the text
of a document out of the policy's text:

1. A prompt is removed only from a text that begins with a chat turn, up to the first assistant
   turn.
2. A block begins directly after the tag that ends a search, where only the rollout writes. It ends
   at its closing tag, or with the text if the text was cut off. A block of JSON (Graph-R1) ends
   with the JSON; a string inside the JSON cannot end it.
3. The end of any other block is certain if exactly one closing tag comes before the next block, its
   documents are numbered from 1 without a gap, all blocks of the text hold the same number of
   documents, and the text has at most as many blocks as the row states searches.
4. Outside the blocks no chat turn begins or ends, except the end of the last turn, and no block of
   another system begins.

A text that violates one of them raises `UncertainWriter`. One forgery passes: the last document of
a block imitates a whole turn of the policy and a block of as many documents, in a row that does not
state its searches. Text alone cannot tell it from a turn of the policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_FRAME = re.compile(r"(?:\s|<\|endoftext\|>|<\|begin_of_text\|>|<s>)*<\|im_start\|>")
_ASSISTANT = "<|im_start|>assistant"
_END_OF_TURN = re.compile(r"<\|im_end\|>(?:\s|<\|im_end\|>|<\|endoftext\|>)*\Z")
_TURN_TOKEN = re.compile(r"<\|im_(?:start|end)\|>")
_DOCUMENT = re.compile(r"^Doc ([0-9]+) ?\(Title:", re.MULTILINE)


class UncertainWriter(ValueError):
    """It is not certain which part of a text the policy wrote."""


@dataclass(frozen=True)
class _Layout:
    """How a system writes a block of retrieved text.

    Group "inserted" of ``opening`` begins where the rollout's text begins, and group "body" of it
    is the position after the opening tag.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    turn_closing: re.Pattern[str] | None = None  # of a block that is a separate chat turn
    numbered: bool = False  # documents are lines "Doc n(Title: ..)"


_TURN_OPENING = r"<\|im_end\|>\s*<\|im_start\|>(?:user|tool)\s*"
_TURN_CLOSING = r"<\|im_end\|>\s*<\|im_start\|>assistant[ \t]*\n?"
_LAYOUTS = {
    "search-r1": _Layout(
        re.compile(r"(?<=</search>)(?P<inserted>\s*)<information>"),
        re.compile(r"</information>\s*"),
        numbered=True,
    ),
    "prograph": _Layout(
        re.compile(rf"(?<=</query>)(?P<inserted>\s*)(?P<turn>{_TURN_OPENING})?<knowledge>"),
        re.compile(r"</knowledge>\s*"),
        turn_closing=re.compile(rf"(?P<tag></knowledge>)\s*{_TURN_CLOSING}"),
    ),
    "hiprag": _Layout(
        re.compile(r"(?<=</search>)(?P<inserted>\s*)<context>"),
        re.compile(r"</context>\s*"),
        numbered=True,
    ),
    "tearag": _Layout(
        re.compile(r"<Reference>(?P<inserted>)"), re.compile(r"</Reference>\n?")
    ),
}  # fmt: skip


# Blocks that only another grammar reads.
_OF_OTHERS = {
    **{name: layout.opening for name, layout in _LAYOUTS.items() if name != "tearag"},
    "r1-searcher": re.compile(r"<\|begin_of_documents\|>"),
}


@dataclass(frozen=True)
class ImportedText:
    """``output``: the text after the prompt; ``observations``: ranges of the retrieved blocks."""

    output: str
    observations: list[tuple[int, int]]


def separate(text: str, grammar_name: str, searches: int | None = None) -> ImportedText:
    """The output without its prompt and end of turn, and the ranges of its retrieved blocks.

    ``searches`` is the number of searches that the row states. Blocks that are separate chat turns
    (Graph-R1) become part of the one turn. Raises UncertainWriter when a text violates a rule of
    this module.
    """
    text = _without_prompt(text)
    blocks = _blocks(text, _LAYOUTS[grammar_name])
    if searches is not None and len(blocks) > searches:
        raise UncertainWriter(
            f"the row states {searches} searches, but the text holds {len(blocks)} retrieved blocks"
        )
    output, position, observations = "", 0, list[tuple[int, int]]()
    for start, end, block in blocks:
        output += _model_text(text[position:start], grammar_name)
        observations.append((len(output), len(output) + len(block)))
        output += block
        position = end
    return ImportedText(
        output + _model_text(_END_OF_TURN.sub("", text[position:]), grammar_name), observations
    )


def _without_prompt(text: str) -> str:
    if not _FRAME.match(text):
        return text
    _, turn, output = text.partition(_ASSISTANT)
    if not turn:
        raise UncertainWriter(f"the chat prompt is not followed by {_ASSISTANT}")
    return output.lstrip("\n")


def _model_text(text: str, grammar_name: str) -> str:
    """``text``; raises UncertainWriter when it holds a chat turn or a block of another system."""
    if token := _TURN_TOKEN.search(text):
        raise UncertainWriter(
            f"{token.group()} stands outside of retrieved text, so it is not certain which turns "
            "the policy wrote"
        )
    for name, opening in _OF_OTHERS.items():
        if name != grammar_name and opening.search(text):
            raise UncertainWriter(
                f"the output holds retrieved text in the format of {name}, so its grammar is not "
                f"{grammar_name}"
            )
    return text


def _blocks(text: str, layout: _Layout) -> list[tuple[int, int, str]]:
    """(start, end, text of the block in the output) of every retrieved block, in order."""
    blocks: list[tuple[int, int, str]] = []
    documents: set[int] = set()
    opening = layout.opening.search(text)
    while opening is not None:
        start, body = opening.start("inserted"), opening.end()
        of_turn = layout.turn_closing is not None and opening.group("turn") is not None
        closing_tag = layout.turn_closing if of_turn and layout.turn_closing else layout.closing
        closing = _end_of_json(text, body, closing_tag) if layout.turn_closing else None
        certain = closing is not None
        closing = closing or closing_tag.search(text, body)
        if closing is None:  # the text was cut off inside the block
            blocks.append((start, len(text), text[start:]))
            break
        following = layout.opening.search(text, closing.end())
        limit = following.start() if following else len(text)
        if not certain and closing_tag.search(text, closing.end(), limit):
            raise UncertainWriter(
                f"a retrieved block has two closing tags {_name(closing)}, and either of them may "
                "be text of a document"
            )
        if layout.numbered:
            documents.add(_document_count(text[body : closing.start()]))
        block = text[start : closing.end()]
        if of_turn:
            tag = opening.start() + opening.group().rindex("<")
            block = f"\n{text[tag : closing.end('tag')]}\n"
        blocks.append((start, closing.end(), block))
        opening = following
    if len(documents) > 1:
        counts = " and ".join(map(str, sorted(documents)))
        raise UncertainWriter(
            f"retrieved blocks hold {counts} documents, so one of them may be text of a document"
        )
    return blocks


def _end_of_json(text: str, body: int, closing: re.Pattern[str]) -> re.Match[str] | None:
    """The closing tag directly after a block whose body is one JSON object, else None."""
    begin = body + len(text[body:]) - len(text[body:].lstrip())
    if not text.startswith("{", begin):
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return closing.match(text, end + len(text[end:]) - len(text[end:].lstrip()))


def _document_count(body: str) -> int:
    """The number of documents; raises UncertainWriter unless they are numbered from 1."""
    numbers: Sequence[int] = [int(number[:9]) for number in _DOCUMENT.findall(body.strip())]
    if list(numbers) != list(range(1, len(numbers) + 1)):
        raise UncertainWriter(
            f"the documents of a retrieved block are numbered {', '.join(map(str, numbers[:9]))}, "
            "so a document may hold the text of others"
        )
    return len(numbers)


def _name(closing: re.Match[str]) -> str:
    return closing.group().partition(">")[0] + ">"
