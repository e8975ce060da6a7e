"""Texts of supervised steps, from the templates of ``templates.toml`` (TeaRAG 4.3.1, step 3).

Input: supporting triplets and an answer, or MuSiQue's hop question and the answers of the earlier
hops. Output: a sentence. Every summary states the supporting triplets first and the hop's answer
second; the policy thus quotes its evidence before it gives an answer. A subquery is the hop's
question on one line with earlier answers filled in. The paper rewrites it with
Qwen2.5-72B-Instruct (``rewriter: llm``); the default cleans up the text, without a model.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

_TEMPLATES = tomllib.loads(Path(__file__).with_name("templates.toml").read_text(encoding="utf-8"))
# (template for one triplet, template for several)
SUMMARIES = tuple((one, several) for one, several in _TEMPLATES["summaries"])
CONCLUSIONS = tuple((template, template) for template in _TEMPLATES["conclusions"])
TO_SEARCH, FROM_MEMORY = tuple(_TEMPLATES["to_search"]), tuple(_TEMPLATES["from_memory"])
RELATIONS: dict[str, str] = _TEMPLATES["relations"]
_DEFAULT_RELATION = "What is the {relation} of {subject}?"


def reasoning(templates: Sequence[str], question: str, rng: random.Random) -> str:
    """A step's reasoning about its question, from one of ``templates`` drawn at random."""
    return rng.choice(templates).format(question=fluent(question))


def summary(
    facts: Sequence[str],
    answer: str,
    rng: random.Random,
    templates: Sequence[tuple[str, str]] = SUMMARIES,
) -> str:
    """The supporting triplets, then the answer, in one of ``templates`` drawn at random."""
    singular, plural = rng.choice(templates)
    template = singular if len(facts) == 1 else plural
    one_line = " ".join(answer.split())
    if one_line.endswith("."):
        template = template.removesuffix(".")  # "3 a.m." already ends the sentence
    text = template.format(facts=" and ".join(facts), answer=one_line)
    return text[:1].upper() + text[1:]


_PLACEHOLDER = re.compile(r"#(\d+)")
_SPACE_BEFORE = re.compile(r"\s+(?=[?.,;:!])|\s+(?='s\b)|\s+(?=’s\b)")


def fill(question: str, answers: Sequence[str]) -> str | None:
    """The question with ``#n`` replaced by ``answers[n - 1]``.

    None when a placeholder refers to this hop or a later one.
    """
    numbers = _PLACEHOLDER.findall(question)
    # int() refuses thousands of digits.
    if any(len(number) > 9 or not 1 <= int(number) <= len(answers) for number in numbers):
        return None
    return _PLACEHOLDER.sub(lambda match: answers[int(match.group(1)) - 1], question)


def fluent(filled: str) -> str:
    """The question on one line with a capital first letter and a question mark.

    A relation-style hop ("Hello Love >> performer") becomes a question. A request ("Name the mayor
    of Rome.") keeps its period.
    """
    text = " ".join(filled.split())
    subject, arrows, relation = text.partition(">>")
    if arrows and subject.strip() and relation.strip():
        template = RELATIONS.get(relation.strip(), _DEFAULT_RELATION)
        text = template.format(subject=_tidy(subject), relation=relation.strip())
    text = _tidy(text)
    if not text.endswith("."):
        text = text.rstrip(" ?") + "?"
    return text[:1].upper() + text[1:]


def _tidy(text: str) -> str:
    return _SPACE_BEFORE.sub("", text).strip()
