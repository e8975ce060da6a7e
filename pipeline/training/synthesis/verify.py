"""Verify drafts of questions by asking the language model to answer them.

Input: drafts. Output: for each the reason to reject it, or None. Each test asks a question over
some passages, and the answer must be right or must not be. A draft is kept if

- two tries over its evidence are right: its passages, and its passages in reverse order after a
  passage of another draft;
- each hop is answered by its own passage;
- without any passage the answer is not right;
- for two hops, over one of the passages alone the answer is not right.

The tests run in this order, and a draft that fails one is not asked about again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.answer_metrics import f1
from pipeline.core.records import Chunk
from pipeline.llm.chat import Chat, Reply
from pipeline.llm.json_replies import read_object
from pipeline.training.synthesis.drafts import Draft, prompt

RIGHT = 0.8  # token F1 from which an answer is right
_TOKENS = 96  # of an answer
_UNREADABLE = "no readable answer in a test"  # also for a test whose answer must not be right
_NOT_ANSWERED, NO_HOP = "not answered with its evidence", "a hop is not answered by its passage"
_KNOWN, _ONE_PASSAGE = "answered without evidence", "one passage is enough"
REASONS = (_NOT_ANSWERED, NO_HOP, _KNOWN, _ONE_PASSAGE)


@dataclass(frozen=True, slots=True)
class _Test:
    question: str
    passages: tuple[Chunk, ...]
    answer: str
    right: bool  # whether the answer has to be right

    @property
    def name(self) -> str:
        """The question and its passages."""
        return "\n".join([self.question, *(chunk.id for chunk in self.passages)])


def verify(
    drafts: Sequence[Draft], chat: Chat, tests_of: Sequence[str] = REASONS
) -> list[str | None]:
    """The reason to reject each draft, in order; None for a draft that is kept.

    ``tests_of`` names the tests by the reasons to reject.
    """
    reasons: list[str | None] = [None] * len(drafts)
    replies: dict[str, Reply] = {}  # the only hop of a question asks the same again
    for reason in tests_of:
        tests = [
            (number, test)
            for number, draft in enumerate(drafts)
            if reasons[number] is None
            for test in _tests(reason, draft, drafts[number - 1])
        ]
        prompts = {
            test.name: prompt("answer", test.passages, question=test.question)
            for _, test in tests
            if test.name not in replies
        }
        replies |= chat.ask(list(prompts.items()), max_tokens=_TOKENS)
        for number, test in tests:
            right = _right(replies[test.name], test.answer)
            if right != test.right:
                reasons[number] = _UNREADABLE if right is None else reason
    return reasons


def _tests(reason: str, draft: Draft, other: Draft) -> list[_Test]:
    chunks, question, answer = draft.path.chunks, draft.question, draft.answer
    if reason == _NOT_ANSWERED:
        noise = tuple(chunk for chunk in other.path.chunks[:1] if chunk not in chunks)
        tries = (chunks, (*noise, *reversed(chunks)))
        return [_Test(question, passages, answer, True) for passages in tries]
    if reason == _KNOWN:
        return [_Test(question, (), answer, False)]
    if reason == NO_HOP:
        return [
            _Test(draft.filled(number), (chunk,), draft.hops[number].answer, True)
            for number, chunk in enumerate(chunks)
        ]
    alone = chunks if len(chunks) > 1 else ()
    return [_Test(question, (chunk,), answer, False) for chunk in alone]


def _right(reply: Reply, answer: str) -> bool | None:
    """Whether a reply gives the answer; None for an unreadable reply."""
    given = (read_object(reply.text) or {}).get("answer", False)
    if given is not None and type(given) not in (str, int, float):
        return None
    return f1("" if given is None else str(given), [answer]) >= RIGHT
