"""Judge steps: each distinct case once, over-search and under-search at the same time.

HiPRAG (arXiv 2510.07794, 3.2). Input: steps, a function that returns the policy's closed-book
answers, and a judge per kind. Output: the distinct judge calls, which give every step its verdict.
A remote judge of under-search runs while the policy answers. Models in this process are loaded one
after the other, because two rarely fit into memory. The steps may be read from a file: memory holds
the distinct cases with their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.core.content_cache import digest
from pipeline.core.progress import Progress
from pipeline.core.verdicts import JudgedStep, Verdict
from pipeline.judges.cases import Case, EquivalenceCase, Judge, JudgeCall, SoundnessCase
from pipeline.judges.closed_book import ClosedBookAnswer

Answerer = Callable[[Sequence[str]], Mapping[str, ClosedBookAnswer]]


@dataclass(frozen=True)
class JudgingResult:
    """``calls`` by distinct case, and the policy's closed-book ``answers`` by query."""

    calls: dict[Case, JudgeCall]
    answers: Mapping[str, ClosedBookAnswer]

    def call(self, step: JudgedStep) -> JudgeCall:
        """The call that decided a step."""
        if step.query is None:
            return self.calls[SoundnessCase(step.reasoning, step.conclusion)]
        answer = self.answers[step.query].text
        return self.calls[EquivalenceCase(step.query, answer, step.conclusion)]

    def verdicts(self, steps: Iterable[JudgedStep]) -> Iterator[Verdict]:
        """The verdict on each of the judged steps, as they come."""
        for step in steps:
            call = self.call(step)
            yield Verdict(step.id, step.step, step.kind, call.verdict, call.model, call.key)


def judge_steps(
    steps: Iterable[JudgedStep],
    answerer: Answerer,
    over: Judge,
    under: Judge,
    progress: Progress | None = None,
) -> JudgingResult:
    """Judge every step; ``over`` and ``under`` may be the same.

    ``answerer`` is called at most once, with the distinct queries, and should free its model before
    it returns. ``over`` is closed before ``under`` decides, unless they are the same judge. Raises
    what the answerer and the judges raise. ``progress`` is started with the number of answers and
    distinct cases; the answerer and the judges count them.
    """
    distinct: dict[SoundnessCase, None] = {}
    searched: dict[tuple[str, str], None] = {}  # query and conclusion
    for step in steps:
        if step.query is None:
            distinct[SoundnessCase(step.reasoning, step.conclusion)] = None
        else:
            searched[step.query, step.conclusion] = None
    soundness_cases, queries = list(distinct), list(dict.fromkeys(query for query, _ in searched))
    if progress is not None:
        total = len(queries) + len(searched) + len(soundness_cases)
        progress.start(total, "answers and cases")
    with ThreadPoolExecutor(max_workers=1) as worker:
        concurrent = None if under.in_process else worker.submit(under.decide, soundness_cases)
        answers = answerer(queries) if queries else {}
        if concurrent is not None and over is under:
            concurrent.result()  # one judge decides one batch of cases at a time
        calls = _over_search_calls(searched, answers, over)
        if over is not under:
            over.close()
        under_calls = under.decide(soundness_cases) if concurrent is None else concurrent.result()
    calls.update(zip(soundness_cases, under_calls, strict=True))
    return JudgingResult(calls, answers)


def _over_search_calls(
    searched: Iterable[tuple[str, str]], answers: Mapping[str, ClosedBookAnswer], judge: Judge
) -> dict[Case, JudgeCall]:
    """The calls on search steps; the verdict is unknown where the policy gave no answer."""
    calls: dict[Case, JudgeCall] = {}
    to_decide = []
    for query, conclusion in searched:
        case, fault = EquivalenceCase(query, answers[query].text, conclusion), answers[query].fault
        if fault:
            calls[case] = JudgeCall(digest("no answer", query).hex(), "unknown", "", fault=fault)
        else:
            to_decide.append(case)
    calls.update(zip(to_decide, judge.decide(to_decide), strict=True))
    return calls
