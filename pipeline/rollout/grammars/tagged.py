"""Shared parser for grammars of tags: ``<think>``, search, observation and ``<answer>``.

Search-R1 (arXiv 2503.09516), R1-Searcher (arXiv 2503.05592) and Graph-R1 (arXiv 2507.21892), whose
format ProGraph-R1 uses, differ in the tags of a search and of its documents, in the states that
allow untagged reasoning, and in the layout of documents. Input: an output. Output: steps, answer
and format verdict. The verdict comes from a state machine over the tags; the first transition that
its table lacks is the format error.

Any completed search retrieves, as in Search-R1, even after a format error. Steps are read from
every completed search with its documents, also in malformed outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pipeline.core.records import Span, Step
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.core.spans import covering
from pipeline.knowledge.retrieval.base import Query
from pipeline.rollout.grammars.base import Finish, Grammar, NextAction, ParsedOutput

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
THINK_TAG = re.compile(r"</?think>")
Transitions = Mapping[tuple[str, str], str]  # (state, tag) -> next state


class TaggedGrammar(Grammar):
    """Base of the tag-based grammars.

    States: start, thinking, thought, searching, searched, observed, answering, answered. Every tag
    of the model leads from one state to the next; an observation leads from searched to observed.
    A subclass names its tags and transitions, and renders and reads its steps and documents.
    """

    search_tags: ClassVar[tuple[str, str]]  # before and after a query
    observation_tags: ClassVar[tuple[str, str]]
    transitions: ClassVar[Transitions]
    text_states: ClassVar[frozenset[str]]  # states that allow text
    required_text_states: ClassVar[frozenset[str]] = frozenset({"searching", "answering"})

    def steps(
        self,
        output: str,
        observations: Sequence[tuple[int, int]],
        model_texts: Sequence[tuple[int, str]],
    ) -> list[Step]:
        """The steps of ``output``.

        ``observations`` are character ranges; ``model_texts`` are the (offset, text) before,
        between and after them.
        """
        raise NotImplementedError

    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        """Retrieve after any completed search; see `Grammar.next_action`."""
        search = self.final_search(output) if finish == "stop" else None
        if search is None:
            answered = self.parse(output).answer is not None
            return Finish("answer" if answered else "malformed")
        if not search.group(1).strip():
            return Finish("malformed")
        if steps_done >= max_steps:
            return Finish("max_steps")
        return Query(search.group(1).strip())

    def parse(self, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
        """Parse a whole output; see `Grammar.parse`. The last answer counts, as in Search-R1."""
        observations = self._observations(output, spans)
        model_texts = _model_texts(output, observations)
        last = _end(output, "</answer>")
        answers = _ANSWER.findall(output[observations[-1][1] if observations else 0 : last])
        error = self._format_error(output, observations)
        return ParsedOutput(
            steps=self.steps(output, observations, model_texts),
            answer=(answers[-1].strip() or None) if answers else None,
            format_ok=error is None,
            format_error=error,
        )

    def spans(self, output: str) -> list[Span]:
        """Documents after a search are observations, with the whitespace around them."""
        return covering(len(output), self._observations(output, ()))

    def first_state(self, output: str) -> str:
        """The state before the first text of ``output``."""
        return "start"

    def final_search(self, text: str) -> re.Match[str] | None:
        """The search at the end of ``text``, or None; group 1 is the query."""
        begin, end = map(re.escape, self.search_tags)
        pattern = rf"{begin}((?:(?!{begin}|{end}).)*){end}\s*\Z"
        return re.search(pattern, text, re.DOTALL)

    def first_action_tag(self, text: str) -> re.Match[str] | None:
        """The first opening search or answer tag in ``text``, or None."""
        return re.search(rf"{re.escape(self.search_tags[0])}|<answer>", text)

    def observation_body(self, observation: str) -> str:
        """The text between the tags of an observation."""
        begin, end = self.observation_tags
        return observation.strip().removeprefix(begin).removesuffix(end).strip()

    def _observations(self, output: str, spans: Sequence[Span]) -> list[tuple[int, int]]:
        if spans:
            return [(start, end) for start, end, writer in spans if writer == "observation"]
        begin, end = map(re.escape, self.observation_tags)
        pattern = rf"(?<={re.escape(self.search_tags[1])})\s*{begin}.*?{end}\s*"
        last = _end(output, self.observation_tags[1])
        return [each.span() for each in re.compile(pattern, re.DOTALL).finditer(output, 0, last)]

    def _format_error(self, output: str, observations: Sequence[tuple[int, int]]) -> str | None:
        """The first format error with its offset, or None."""
        own = "|".join(map(re.escape, self.search_tags + self.observation_tags))
        tags = re.compile(rf"</?(?:think|answer)>|{own}")
        state = self.first_state(output)
        model_texts = _model_texts(output, observations)
        for number, (offset, text) in enumerate(model_texts):
            position = 0
            for tag in [*tags.finditer(text), None]:
                between = text[position : tag.start() if tag else None]
                where = offset + position
                if control := first_control_token(between, self.special_tokens):
                    return control_token_error(control, where)
                if between.strip() and state not in self.text_states:
                    return f"text outside the tags at offset {where}"
                if tag is None:
                    break
                if state in self.required_text_states and not between.strip():
                    return f"nothing inside the tags at offset {where}"
                next_state = self.transitions.get((state, tag.group()))
                if next_state is None:
                    where = offset + tag.start()
                    return f"{tag.group()} after state {state!r} at offset {where}"
                state, position = next_state, tag.end()
            if number < len(observations):
                if state != "searched":
                    start = observations[number][0]
                    begin, before = self.observation_tags[0], self.search_tags[0]
                    return f"{begin} without {before} at offset {start}"
                state = "observed"
        return None if state == "answered" else f"no answer at offset {len(output)}"


def _end(text: str, tag: str) -> int:
    """The end of the last ``tag`` with the white space after it: every tag open there is closed."""
    return len(text) - len(text[text.rfind(tag) + len(tag) :].lstrip())


def _model_texts(output: str, observations: Sequence[tuple[int, int]]) -> list[tuple[int, str]]:
    """(offset, text) before, between and after the observations: one more than observations."""
    starts = [0, *(end for _, end in observations)]
    ends = [*(start for start, _ in observations), len(output)]
    return [(start, output[start:end]) for start, end in zip(starts, ends, strict=True)]


def reasoning(text: str) -> str:
    """``text`` without its think tags."""
    return THINK_TAG.sub(" ", text).strip()
