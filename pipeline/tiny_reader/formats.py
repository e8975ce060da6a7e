"""Random formats of a reasoning path.

Purpose: a reader that was taught one grammar reads in no other; one that was taught a new grammar
with every path only needs an adapter to learn the next. Input: a random generator. Output: a
`Format`: tag words, bracket style, order and presence of the parts of a step, labels and order of
retrieved items, separators. The structure is that of the grammars in `trajectory.grammar`, but
none of their tag words occurs here. A format can be told in words or by a skeleton of a path.
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
# Of these the grammars in use are made; a tag never is one of them.
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
# Opening and closing of a tag; {w} is the tag word. Without a closing a line break ends the part.
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
    """A tag word for a role: an English one, two of them, or an invented one."""
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
    """Opening and closing string of a part; the closing may be empty."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Format:
    """One format. Part names: plan, thought, query (before retrieval), note, thought (after).

    Attributes:
        before: parts of a step before the retrieval, in order.
        tags: of every part, and of "documents" and "answer".
        step: header of a step with {n}, or empty.
        step_close: what ends a step, or empty.
        asks_by_close: the query's closing tag asks for the retrieval, and the environment opens
            the documents; otherwise the model writes the documents' opening tag itself.
        merged: the note of a step and the thought of the next one share a tag.
        pad: between a tag and its text.
        gap: between parts.
        name_gap: between the names of a plan.
        item: label of a retrieved item with {n}.
        document: a document with {title} and {text}.
        triplet: a triplet with {triplet}.
        item_gap: between items.
        wrapper: opening and closing of a block around all steps, or empty strings.
    """

    before: tuple[str, ...]
    tags: dict[str, Tag]
    step: str
    step_close: str
    asks_by_close: bool
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
    """A format drawn from some billions."""
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
            # One style of label for all parts, most of the time.
            shape = label if rng.random() < 0.8 else rng.choice(_LABELS)
            tags[role] = Tag(shape.format(w=word), "")
        else:
            tags[role] = _tag(rng, role, style if rng.random() < 0.9 else None, word)
    # The documents always stand between two tags, for the reader has to see where they end.
    around = style if style and rng.random() < 0.8 else rng.choice(_BRACKETS)
    tags["documents"] = Tag(around[0].format(w=documents), around[1].format(w=documents))
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
    asks_by_close = before[-1] == "query" and bool(tags["query"].close) and rng.random() < 0.5
    fields = rng.random()
    title, text = (_cased(rng, rng.choice(_WORDS[role])) for role in ("title", "text"))
    if fields < 0.3:
        document = f"{title}: {{title}} {text}: {{text}}"
    elif fields < 0.5:
        quote = rng.choice(('"', "'", "*"))
        document = f"{title}: {quote}{{title}}{quote} {text}: {{text}}"
        if document.startswith('Title: "'):  # as a grammar in use has it
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
        asks_by_close=asks_by_close,
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


_PLACES = {
    "plan": ("names", "names of things", "what it is about"),
    "thought": ("thoughts", "what is needed", "a remark"),
    "query": ("one question", "what to look up", "a question"),
    "documents": ("texts", "what was found", "retrieved texts"),
    "note": ("what follows", "what the texts say", "a short remark"),
    "answer": ("the answer", "the final answer", "answer to the question"),
}
_LISTED = ("The parts are", "Parts:", "Use these marks:", "Each step holds", "Write:")
_BEGUN = ("A step begins with", "Begin a step with", "Steps open with")
_ENDED = ("End with", "Finish with", "At the end:", "Close with")


def told_format(shape: Format, rng: random.Random) -> str:
    """What a system message says of a format: a skeleton of a path, or its parts in a list."""
    dots = rng.choice(("...", "…", "")) if rng.random() < 0.4 else None
    places = {part: dots or rng.choice(words) for part, words in _PLACES.items()}

    def shown(part: str) -> str:
        tag = shape.tags[part]
        close = (shape.pad if tag.close else "") + tag.close
        return f"{tag.open}{shape.pad}{places[part]}{close}"

    after = "thought" if shape.merged else "note"
    parts = [*shape.before, "documents"] + ([] if shape.merged else [after])
    if rng.random() < 0.5:
        step = [shape.step.format(n=1)] if shape.step else []
        step += [shown(part) for part in parts]
        step += [shape.step_close] if shape.step_close else []
        again = rng.choice(("...", "(more of these)", "and so on", "as often as needed"))
        skeleton = [shape.wrapper[0], *step, again, shape.wrapper[1], shown("answer")]
        opening = rng.choice(("Format:", "Write like this:", "Use this form:", "Template:"))
        return "\n".join([opening, *(line for line in skeleton if line)])
    gap = rng.choice((", ", "; ", " then ", "\n"))
    sentences = [f"{rng.choice(_LISTED)} {gap.join(map(shown, dict.fromkeys(parts)))}"]
    if shape.step:
        sentences.append(f"{rng.choice(_BEGUN)} {shape.step.format(n=1)}")
    sentences.append(f"{rng.choice(_ENDED)} {shown('answer')}")
    return rng.choice((" ", "\n")).join(sentences)
