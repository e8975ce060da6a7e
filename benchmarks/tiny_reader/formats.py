"""Random formats of a reasoning trajectory.

Purpose: a model trained on one grammar does not read in another. A model that saw a new grammar
with every trajectory needs only an adapter to learn the next one. Input: a random generator.
Output: a `Format`: tag words, bracket style, order and presence of the parts of a step, labels of
retrieved items, separators. The structure follows the grammars in `pipeline.grammars`, but none of
their tag words occurs here. `format_prompts` describes a format in a system prompt.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

_WORD_TABLE = """
plan: names things keys topics focus about subjects people terms objects targets who list points
  mentions looking-at concerns key-names who-and-what actors
thought: idea thought plan reason aim goal because why hint next todo intent logic mind
query: ask question lookup find seek request q inquiry probe fetch call wanted sub-question need
  look_up ask_for question-now check
documents: docs sources results passages found material hits retrieved facts pages info data
  library texts records snippets archive reading shelf returned
note: note finding result so learned remark therefore insight conclude outcome lesson recap
  derived takeaway means established
answer: final reply solution response verdict done end output a therefore-answer conclusion-all
  last_word finish closing
step: part round stage hop turn move phase stage-no task block level
item: doc item source hit passage ref no entry text fact line piece
title: title name page about head of topic entry
text: text body content says reads passage t
triplet: triple relation fact link edge statement graph
"""
_WORDS: dict[str, tuple[str, ...]] = {
    role: tuple(words.split())
    for role, words in re.findall(r"^(\w+):((?:.|\n )*)", _WORD_TABLE, re.MULTILINE)
}
# The tag words of the project's grammars; a random tag is never one of them.
_RESERVED_WORDS = """
think query knowledge answer search context conclusion reasoning step reference subquery
evidence summary information documents
"""
RESERVED = frozenset(_RESERVED_WORDS.split())
_SYLLABLE_TABLE = """
ka lo mi ter ref er ence sub que ry evi den ce sum ma ry in for con text clu sion an swer fin
al imp tant en ti ty sea rch kno led ge rea so ning ste p thi nk bo ra xu pel dri vo gan shi
mul te cor nal
"""
_SYLLABLES: tuple[str, ...] = tuple(_SYLLABLE_TABLE.split())
# Opening and closing tag; {w} is the tag word.
_BRACKETS: tuple[tuple[str, str], ...] = (
    ("<{w}>", "</{w}>"),
    ("<{w}>", "</{w}>"),
    ("<{w}>", "</{w}>"),
    ("<{w}>", "</{w}>"),
    ("[{w}]", "[/{w}]"),
    ("[{w}]", "[end {w}]"),
    ("{{{w}}}", "{{/{w}}}"),
    ("«{w}»", "«/{w}»"),
    ("<<{w}>>", "<</{w}>>"),
    ("({w})", "(/{w})"),
    ("|{w}|", "|/{w}|"),
    ("{w}{{", "}}"),
    ("\\begin{{{w}}}", "\\end{{{w}}}"),
)
_LABELS: tuple[str, ...] = (
    *("{w}:", "{w}:", "{w}:", "{w}:", "{w} =", "[{w}]", "## {w}", "{w} -", "* {w}:", "> {w}:"),
    *("**{w}**:", "<{w}>", "«{w}»", "{w} |", "({w})", "# {w}:", "@{w}", "- {w}:", "{w} >"),
)


def _cased(rng: random.Random, word: str) -> str:
    draw = rng.random()
    if draw < 0.45:
        return word
    if draw < 0.85:
        return word[0].upper() + word[1:]
    return word.upper()


def tag_word(rng: random.Random, role: str) -> str:
    """A tag word for a part: one or two English words or an invented one, never reserved."""
    while True:
        draw = rng.random()
        if draw < 0.45:
            word = rng.choice(_WORDS[role])
        elif draw < 0.6:
            word = f"{rng.choice(_WORDS[role])} {rng.choice(_WORDS[rng.choice(list(_WORDS))])}"
        else:
            word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))
        if word.casefold() not in RESERVED:
            return _cased(rng, word)


@dataclass(frozen=True, slots=True)
class Tag:
    """Opening and closing string of a part. With an empty closing string, a separator ends it."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Format:
    """One format. Parts before the retrieval are plan, thought and query; note comes after it.

    Attributes:
        before: parts of a step before the retrieval, in order.
        tags: tag of every part, and of "documents" and "answer".
        step: header of a step, with {n}, or empty.
        step_close: closing string of a step, or empty.
        query_close_retrieves: whether the query's closing tag triggers the retrieval; the
            observation then includes the documents' opening tag, which the model writes otherwise.
        merged: whether the note of a step is part of the thought of the next step.
        pad: separator between a tag and its text.
        gap: separator between parts.
        name_gap: separator between the names of a plan.
        item: label of a retrieved item, with {n}.
        document: template of a document, with {title} and {text}.
        triplet: template of a triplet, with {triplet}.
        item_gap: separator between items.
        wrapper: opening and closing string of a block around all steps, or empty strings.
    """

    before: tuple[str, ...]
    tags: dict[str, Tag]
    step: str
    step_close: str
    query_close_retrieves: bool
    merged: bool
    pad: str
    gap: str
    name_gap: str
    item: str
    document: str
    triplet: str
    item_gap: str
    wrapper: tuple[str, str]


def _tag(rng: random.Random, role: str, style: tuple[str, str] | None, word: str) -> Tag:
    if style is None:
        return Tag(rng.choice(_LABELS).format(w=word), "")
    return Tag(style[0].format(w=word), style[1].format(w=word))


def random_format(rng: random.Random) -> Format:
    """A format drawn at random, one of several billion."""
    style = rng.choice(_BRACKETS) if rng.random() < 0.55 else None
    label = rng.choice(_LABELS)
    words: list[str] = []
    while len({word.casefold() for word in words}) < 7:
        words = [tag_word(rng, role) for role in ("plan", "thought", "query", "note", "answer")]
        words += [tag_word(rng, "documents"), tag_word(rng, "step")]
    plan, thought, query, note, answer, documents, step = words
    tags: dict[str, Tag] = {}
    for role, word in (
        *(("plan", plan), ("thought", thought), ("query", query)),
        *(("note", note), ("answer", answer)),
    ):
        if style is None:
            # Most formats use one label style for all parts.
            template = label if rng.random() < 0.8 else rng.choice(_LABELS)
            tags[role] = Tag(template.format(w=word), "")
        else:
            tags[role] = _tag(rng, role, style if rng.random() < 0.9 else None, word)
    # The documents always have a closing tag, because the model has to see where they end.
    brackets = style if style and rng.random() < 0.8 else rng.choice(_BRACKETS)
    tags["documents"] = Tag(brackets[0].format(w=documents), brackets[1].format(w=documents))
    before = rng.choice(
        (
            *(("plan", "query"), ("plan", "query"), ("query", "plan"), ("query",), ("query",)),
            *(("thought", "query"), ("thought", "query"), ("plan", "thought", "query")),
            *(("thought", "plan", "query"), ("thought", "query", "plan")),
        )
    )
    numbered = rng.choice(
        (
            "",
            "",
            "",
            f"{step} {{n}}:",
            f"{step} {{n}}",
            "({n})",
            "{n}.",
            f"## {step} {{n}}",
            f"[{step} {{n}}]",
            f"<{step}>",
            f"<{step}>",
            f"{step}:",
            "---",
            f"{step}#{{n}}",
        )
    )
    step_close = f"</{step}>" if numbered == f"<{step}>" else ""
    query_close_retrieves = (
        before[-1] == "query" and bool(tags["query"].close) and rng.random() < 0.5
    )
    fields = rng.random()
    title, text = (_cased(rng, rng.choice(_WORDS[role])) for role in ("title", "text"))
    if fields < 0.3:
        document = f"{title}: {{title}} {text}: {{text}}"
    elif fields < 0.5:
        quote = rng.choice(('"', "'", "*"))
        document = f"{title}: {quote}{{title}}{quote} {text}: {{text}}"
        if document.startswith('Title: "'):  # one of the project's grammars uses this form
            document = document.replace('"', "'")
    else:
        document = rng.choice(
            (
                '"{title}" {text}',
                "{title}: {text}",
                "({title}) {text}",
                "[{title}] {text}",
                "{text} ({title})",
                "{title} - {text}",
                "{text}",
                "**{title}** {text}",
                "{title} | {text}",
                "«{title}» {text}",
                "{title}; {text}",
                "'{title}': {text}",
            )
        )
    link = _cased(rng, rng.choice(_WORDS["triplet"]))
    triplet = rng.choice(
        (
            f"{link}: {{triplet}}",
            f"{link}: {{triplet}}",
            "{triplet}",
            "({triplet})",
            "{triplet}.",
            f"[{link}] {{triplet}}",
            f"{link} - {{triplet}}",
            "<{triplet}>",
            "{triplet} ;",
        )
    )
    item = _cased(rng, rng.choice(_WORDS["item"]))
    wrapped = style is not None and rng.random() < 0.3
    outer = tag_word(rng, "thought")
    wrapper = (
        (style[0].format(w=outer), style[1].format(w=outer)) if style and wrapped else ("", "")
    )
    return Format(
        before=before,
        tags=tags,
        step=numbered,
        step_close=step_close,
        query_close_retrieves=query_close_retrieves,
        merged="thought" in before and before[0] == "thought" and rng.random() < 0.4,
        pad=rng.choice((" ", " ", "", "\n")) if style is None else rng.choice(("", "", " ", "\n")),
        gap=rng.choice(("\n", "\n", "\n", "\n\n", " ")) if style else rng.choice(("\n", "\n\n")),
        name_gap=rng.choice(("; ", ", ", " | ", " / ", "; ", " and ", ",")),
        item=rng.choice(
            (
                f"{item} {{n}}:",
                f"{item} {{n}}:",
                "[{n}]",
                "({n})",
                "{n}.",
                "{n})",
                "-",
                "*",
                "",
                f"{item}:",
                f"{item}#{{n}}",
                f"<{item} {{n}}>",
                f"{item} {{n}} -",
            )
        ),
        document=document,
        triplet=triplet,
        item_gap=rng.choice(("\n", "\n", "\n", "\n\n", " ")),
        wrapper=wrapper,
    )
