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
   any system begins.

A text that violates one of them raises `UncertainWriter`. One forgery passes: the last document of
a block imitates a whole turn of the policy and a block of as many documents, in a row that does not
state its searches. Text alone cannot tell it from a turn of the policy.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass

_FRAME = re.compile(r"(?:\s|<\|endoftext\|>|<\|begin_of_text\|>|<s>)*<\|im_start\|>")
_ASSISTANT = "<|im_start|>assistant"
_END_OF_TURN = re.compile(r"<\|im_end\|>(?:\s|<\|im_end\|>|<\|endoftext\|>)*\Z")
_TURN_TOKEN = re.compile(r"<\|im_(?:start|end)\|>")
_TURN_OPENING = r"<\|im_end\|>\s*<\|im_start\|>(?:user|tool)\s*"
_TURN_CLOSING = r"\s*<\|im_end\|>\s*<\|im_start\|>assistant[ \t]*\n?"
_DOC_LINES = re.compile(r"^Doc ([0-9]+) ?\(Title:", re.MULTILINE)
R1_SEARCHER = "r1-searcher"


class UncertainWriter(ValueError):
    """It is not certain which part of a text the policy wrote."""


@dataclass(frozen=True)
class _Layout:
    """How a system writes a block of retrieved text, in the turn or as a chat turn of its own.

    The rollout's text begins after ``before``. ``documents`` finds the numbers of a block's
    documents. With ``json`` a block may be a JSON object. ``after`` follows the tag ``end``.
    """

    before: str
    tag: str
    end: str
    documents: re.Pattern[str] | None = None
    json: bool = False
    after: str = r"\s*"

    @property
    def opening(self) -> re.Pattern[str]:
        """Group 1 begins where the rollout's text begins; group 2 is the opening of a chat turn."""
        before, tag = re.escape(self.before), re.escape(self.tag)
        return re.compile(rf"(?<={before})(\s*)({_TURN_OPENING})?{tag}")


_LAYOUTS = {
    "search-r1": _Layout("</search>", "<information>", "</information>", _DOC_LINES),
    "prograph": _Layout("</query>", "<knowledge>", "</knowledge>", json=True),
    "hiprag": _Layout("</search>", "<context>", "</context>", _DOC_LINES),
    "tearag": _Layout("<Reference>", "", "</Reference>", after=r"\n?"),
    R1_SEARCHER: _Layout(
        "<|end_of_query|>",
        "<|begin_of_documents|>",
        "<|end_of_documents|>",
        re.compile(r"^\(([0-9]+)\)", re.MULTILINE),
    ),
}


def separate(text: str, system: str, searches: object = None) -> list[tuple[str, bool]]:
    """The output without its prompt and end of turn: text of the policy and retrieved blocks in
    turn, each with whether it was retrieved. The first and the last piece are the policy's.

    ``system`` is a grammar. ``searches`` is the number of searches that the row states, if it is a
    number, which tables hold as text. Blocks that are separate chat turns (Graph-R1) become part of
    the one turn. Raises UncertainWriter when a text violates a rule of this module.
    """
    if _FRAME.match(text):
        _, turn, text = text.partition(_ASSISTANT)
        if not turn:
            raise UncertainWriter(f"the chat prompt is not followed by {_ASSISTANT}")
        text = text.lstrip("\n")
    blocks = _blocks(text, _LAYOUTS[system])
    stated = str(searches).removesuffix(".0")  # of a pandas column with nulls
    if re.fullmatch("[0-9]{1,9}", stated) and len(blocks) > int(stated):
        raise UncertainWriter(
            f"the row states {stated} searches, but the text holds {len(blocks)} retrieved blocks"
        )
    pieces, position = list[tuple[str, bool]](), 0
    for start, end, block in blocks:
        pieces += [(_model_text(text[position:start], system), False), (block, True)]
        position = end
    return [*pieces, (_model_text(_END_OF_TURN.sub("", text[position:]), system), False)]


def _model_text(text: str, system: str) -> str:
    """``text``; raises UncertainWriter when it holds a chat turn or a block of another system."""
    if token := _TURN_TOKEN.search(text):
        raise UncertainWriter(
            f"{token.group()} stands outside of retrieved text, so it is not certain which turns "
            "the policy wrote"
        )
    for name, layout in _LAYOUTS.items():
        bare = name == R1_SEARCHER and layout.tag in text  # no other text has this tag
        if bare or (name not in (system, "tearag") and layout.opening.search(text)):
            problem = (
                "where no search ended" if name == system else f"so its grammar is not {system}"
            )
            raise UncertainWriter(
                f"the output holds retrieved text in the format of {name}, {problem}"
            )
    return text


def _blocks(text: str, layout: _Layout) -> list[tuple[int, int, str]]:
    """(start, end, text of the block in the output) of every retrieved block, in order."""
    blocks: list[tuple[int, int, str]] = []
    documents: set[int] = set()
    opening = layout.opening.search(text)
    while opening is not None:
        start, body, of_turn = opening.start(1), opening.end(), opening[2] is not None
        after = _TURN_CLOSING if of_turn else layout.after
        closing_tag = re.compile(f"({re.escape(layout.end)}){after}")
        certain = _end_of_json(text, body, closing_tag) if layout.json else None
        closing = certain or closing_tag.search(text, body)
        if closing is None:  # the text was cut off inside the block
            blocks.append((start, len(text), text[start:]))
            break
        opening = layout.opening.search(text, closing.end())
        limit = opening.start() if opening else len(text)
        if not certain and closing_tag.search(text, closing.end(), limit):
            raise UncertainWriter(
                f"a retrieved block has two closing tags {layout.end}, and either of them may be "
                "text of a document"
            )
        if layout.documents:
            numbers = layout.documents.findall(text[body : closing.start()].strip())
            if numbers != [str(number) for number in range(1, len(numbers) + 1)]:
                raise UncertainWriter(
                    "the documents of a retrieved block are numbered "
                    f"{', '.join(each[:9] for each in numbers[:9])}, so a document may hold the "
                    "text of others"
                )
            documents.add(len(numbers))
        block = text[start : closing.end()]
        if of_turn:
            block = f"\n{layout.tag}{text[body : closing.end(1)]}\n"
        blocks.append((start, closing.end(), block))
    if len(documents) > 1:
        counts = " and ".join(map(str, sorted(documents)))
        raise UncertainWriter(
            f"retrieved blocks hold {counts} documents, so one of them may be text of a document"
        )
    return blocks


def _end_of_json(text: str, body: int, closing: re.Pattern[str]) -> re.Match[str] | None:
    """The closing tag directly after a block whose body is one JSON object, else None."""
    begin = len(text) - len(text[body:].lstrip())
    with suppress(ValueError, RecursionError):
        if text.startswith("{", begin):
            _, end = json.JSONDecoder().raw_decode(text, begin)
            return closing.match(text, len(text) - len(text[end:].lstrip()))
    return None
