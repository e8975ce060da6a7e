"""Descriptions of a random format for the system prompt, in words or as a skeleton of a trajectory.

Purpose: train the model to follow a format that its prompt describes. Input: a `Format` and a
random generator. Output: text that names every tag of the format.
"""

from __future__ import annotations

import random

from benchmarks.tiny_reader.formats import Format

_PLACEHOLDERS = {
    "plan": ("names", "names of things", "what it is about"),
    "thought": ("thoughts", "what is needed", "a remark"),
    "query": ("one question", "what to look up", "a question"),
    "documents": ("texts", "what was found", "retrieved texts"),
    "note": ("what follows", "what the texts say", "a short remark"),
    "answer": ("the answer", "the final answer", "answer to the question"),
}
_LIST_INTROS = ("The parts are", "Parts:", "Use these marks:", "Each step holds", "Write:")
_STEP_INTROS = ("A step begins with", "Begin a step with", "Steps open with")
_ANSWER_INTROS = ("End with", "Finish with", "At the end:", "Close with")


def format_description(fmt: Format, rng: random.Random) -> str:
    """A description of a format for a system prompt: a trajectory skeleton, or a list of parts."""
    dots = rng.choice(("...", "…", "")) if rng.random() < 0.4 else None
    placeholders = {part: dots or rng.choice(options) for part, options in _PLACEHOLDERS.items()}

    def tagged(part: str) -> str:
        tag = fmt.tags[part]
        close = (fmt.pad if tag.close else "") + tag.close
        return f"{tag.open}{fmt.pad}{placeholders[part]}{close}"

    after = "thought" if fmt.merged else "note"
    parts = [*fmt.before, "documents"] + ([] if fmt.merged else [after])
    if rng.random() < 0.5:
        step = [fmt.step.format(n=1)] if fmt.step else []
        step += [tagged(part) for part in parts]
        step += [fmt.step_close] if fmt.step_close else []
        repetition = rng.choice(("...", "(more of these)", "and so on", "as often as needed"))
        skeleton = [fmt.wrapper[0], *step, repetition, fmt.wrapper[1], tagged("answer")]
        opening = rng.choice(("Format:", "Write like this:", "Use this form:", "Template:"))
        return "\n".join([opening, *(line for line in skeleton if line)])
    gap = rng.choice((", ", "; ", " then ", "\n"))
    sentences = [f"{rng.choice(_LIST_INTROS)} {gap.join(map(tagged, dict.fromkeys(parts)))}"]
    if fmt.step:
        sentences.append(f"{rng.choice(_STEP_INTROS)} {fmt.step.format(n=1)}")
    sentences.append(f"{rng.choice(_ANSWER_INTROS)} {tagged('answer')}")
    return rng.choice((" ", "\n")).join(sentences)
