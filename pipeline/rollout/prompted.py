"""Loops that an untrained model runs by its prompt alone: IRCoT and Search-o1 (`retrieval.rounds`).

Input: sampled segments. Output: queries, and the texts that show what they retrieve. Such
trajectories are evaluated and never trained: their prompts change, or observations depend on
segments that no record holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pipeline.config.policy import Prompt
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.knowledge.retrieval.base import Query
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokens import observation_ids, prompt_ids, segment_text
from pipeline.rollout.formats import Items, Next
from pipeline.rollout.grammars.base import Finish, ParsedOutput
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.tags import OneTurn, answered_step

_SAID = re.compile(r"answer is:?\s*(.*?)[.\s]*$", re.IGNORECASE | re.MULTILINE)
_QUERY = ("<|begin_search_query|>", "<|end_search_query|>")
_RESULT = ("<|begin_search_result|>", "<|end_search_result|>")
_ASKED = re.compile(rf"{re.escape(_QUERY[0])}((?:(?!<\|).)*){re.escape(_QUERY[1])}", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_FINDING = "**Final Information**"
_READ = f"""\
Read the passages that a search found, and extract what helps to go on with the reasoning.
1. Check each passage for facts that bear on the query and on the question behind the reasoning.
2. Keep facts that move the reasoning on, and nothing that the passages do not say.
3. Write {_FINDING} and after it these facts, or "No helpful information found."

Reasoning so far:
{{reasoning}}

Query:
{{query}}

Passages:
{{passages}}
"""


class Prompted(OneTurn):
    """A loop; its text with an answer is well-formed if it has no control token but ``tags``."""

    said: ClassVar[re.Pattern[str]]  # group 1 is an answer

    @property
    def tags(self) -> tuple[str, ...]:
        return ()

    def queries(self, trajectory: PartialTrajectory) -> list[str]:
        """What was searched for, in order, and perhaps more after it."""
        raise NotImplementedError

    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        """The last answer, and a step for each retrieval."""
        control = first_control_token(trajectory.output, self.grammar.special_tokens, self.tags)
        spans = (span for span in trajectory.spans if span[2] == "model")
        own = "".join(trajectory.output[start:end] for start, end, _ in spans)
        own = own.partition(control.group())[0] if control else own
        said = [answer.strip() for answer in self.said.findall(own)]
        answer = (said or [""])[-1]
        error = None if answer else f"no answer at offset {len(trajectory.output)}"
        error = control_token_error(control) if control else error
        answer = answer or self.unmarked(own)
        searched = zip(self.queries(trajectory), trajectory.contexts, strict=False)
        steps = [answered_step(query, items, answer) for query, items in searched]
        return ParsedOutput(steps, answer or None, error is None, error)

    def unmarked(self, text: str) -> str:
        """The answer in a text that marks none."""
        return ""


class IRCoT(Prompted):
    """IRCoT (arXiv 2212.10509): each sentence of a chain of thought is the next query.

    The passages of the question and of every sentence are shown before the question, without
    repetitions. The chain ends with "answer is". Departures: a line is a sentence, which the prompt
    asks for, so abbreviations end none; there are no demonstrations; after the budget the chain
    goes on without searches; and the answer is the chain's, while the paper has a reader answer.
    """

    said: ClassVar[re.Pattern[str]] = _SAID

    @property
    def stop(self) -> tuple[str, ...]:
        return ("\n",)

    def following(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        # A token may go on after the end of a line.
        sentences = _lines(trajectory.output.rpartition("\n")[0])
        if end.finish == "eos" or self.said.search("".join(sentences[-1:])):
            return Finish("answer")
        # One token may be a full stop and two ends of line; the question was searched for first.
        new = sentences[len(trajectory.contexts) - 1 :]
        return [Query(new[0], (new[0],))] if new and len(trajectory.contexts) < most else None

    def append_segment(self, trajectory: PartialTrajectory, segment: GenerationResult) -> None:
        # SentencePiece's decoders strip the space before a first word, here before a later one.
        ids = trajectory.token_ids + segment.token_ids
        whole = segment_text(self.tokenizer, ids, segment.finish)
        super().append_segment(trajectory, replace(segment, text=whole[len(trajectory.output) :]))

    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        [found], question = contexts, trajectory.question.question
        earlier = {item.text: item for items in trajectory.contexts for item in items}
        kept = self.grammar.sanitize_items(found)
        new = [item for item in kept if item.text not in earlier]
        text = self.shown(trajectory, [*earlier.values(), *new])
        _, prompt = self.prompt(self.instruction, text + question)
        tokens = len(observation_ids(self.tokenizer, self.shown(trajectory, new)))
        trajectory.put_context_in_prompt(kept, prompt, tokens)
        return True

    def unmarked(self, text: str) -> str:
        """The last line, as the released code takes a text without "answer is" for the answer."""
        return text.strip().rpartition("\n")[2].strip()

    def queries(self, trajectory: PartialTrajectory) -> list[str]:
        return [trajectory.question.question, *_lines(trajectory.output)]


def _lines(text: str) -> list[str]:
    return [*filter(None, map(str.strip, text.split("\n")))]


class SearchO1(Prompted):
    """Search-o1 (arXiv 2501.05366): in a separate request the model reads a query's passages.

    What it extracts is inserted in place of the passages (reason-in-documents, 3.3). A repeated
    query and one beyond the budget get a sentence instead. The answer is in a box. Departures:
    passages of an index instead of web pages, and the whole reasoning in the request, of which the
    released code leaves out steps.
    """

    said: ClassVar[re.Pattern[str]] = _BOXED

    @property
    def tags(self) -> tuple[str, ...]:
        return (*_QUERY, *_RESULT)

    @property
    def stop(self) -> tuple[str, ...]:
        return (_QUERY[1],)

    def following(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        if trajectory.unread is not None:  # what was read has just been inserted
            trajectory.unread = None
            return None
        if end.finish == "eos":
            return Finish("answer")
        asked = list(_ASKED.finditer(trajectory.output))
        *earlier, query = [match[1].strip() for match in asked] or [""]
        if not query or trajectory.output[asked[-1].end() :].strip():
            return Finish("malformed")
        refusal = "This was searched before; see its result." if query in earlier else ""
        if len(trajectory.contexts) >= most:
            refusal = "The number of searches is used up; answer without another."
        if not refusal:
            return [Query(query, (query,))]
        trajectory.append_observation(self._result(refusal), self.tokenizer)
        return None

    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        trajectory.unread = self.grammar.sanitize_items(contexts[0])
        return True

    def request(self, trajectory: PartialTrajectory) -> list[int]:
        if trajectory.unread is None:
            return super().request(trajectory)
        text = _READ.format(
            reasoning=trajectory.output,
            query=_ASKED.findall(trajectory.output)[-1].strip(),
            passages=self.shown(trajectory, trajectory.unread),
        )
        return prompt_ids(self.tokenizer, Prompt().messages(text))

    def append_segment(self, trajectory: PartialTrajectory, segment: GenerationResult) -> None:
        if trajectory.unread is None:
            super().append_segment(trajectory, segment)
            return
        trajectory.segments += 1
        read = self.grammar.clean(segment.text.rpartition(_FINDING)[2])
        trajectory.append_context(trajectory.unread, self._result(read), self.tokenizer)

    def queries(self, trajectory: PartialTrajectory) -> list[str]:
        return list(dict.fromkeys(map(str.strip, _ASKED.findall(trajectory.output))))

    def _result(self, text: str) -> str:
        return f"\n\n{_RESULT[0]}{text}{_RESULT[1]}\n\n"


LOOPS: dict[str, type[OneTurn]] = {"ircot": IRCoT, "search-o1": SearchO1}
