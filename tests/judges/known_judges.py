"""A judge and a policy with known verdicts and answers, which record their requests."""

from collections.abc import Mapping, Sequence

from pipeline.core.content_cache import digest
from pipeline.core.records import Step, Trajectory
from pipeline.core.verdicts import Ruling
from pipeline.judges.cases import Case, EquivalenceCase, Judge, JudgeCall
from pipeline.judges.closed_book import ClosedBookAnswer
from tests.smallest import small_trajectory


class KnownJudge(Judge):
    """Over-search when answer equals conclusion; under-search when the conclusion has "wrong".

    The verdict on a conclusion with a question mark is unknown. ``cases`` are those decided.
    """

    model = "known"

    def __init__(self, in_process: bool = False) -> None:
        self.in_process = in_process
        self.cases: list[Case] = []
        self.closed = 0

    def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
        self.cases += cases
        return [
            JudgeCall(digest(str(case)).hex(), ruling(case), self.model, fault=fault(case))
            for case in cases
        ]

    def close(self) -> None:
        self.closed += 1


def fault(case: Case) -> str:
    return "not readable" if "?" in case.conclusion else ""


def ruling(case: Case) -> Ruling:
    if fault(case):
        return "unknown"
    if isinstance(case, EquivalenceCase):
        return case.ruling(case.answer == case.conclusion)
    return case.ruling("wrong" not in case.conclusion)


class KnownPolicy:
    """Answers "Ann" to every query except "too long"; ``queries`` are those of each call."""

    def __init__(self) -> None:
        self.queries: list[list[str]] = []

    def __call__(self, queries: Sequence[str]) -> Mapping[str, ClosedBookAnswer]:
        self.queries.append(list(queries))
        return {
            query: ClosedBookAnswer("", "too long")
            if query == "too long"
            else ClosedBookAnswer("Ann")
            for query in queries
        }


def trajectory(name: str, grammar: str, *steps: Step, stop: str = "answer") -> Trajectory:
    """A trajectory with the given steps and stop, and placeholders elsewhere."""
    fields = {"trajectory_id": name, "hop": "multi", "answers": ["a"], "grammar": grammar}
    return small_trajectory(**fields, steps=list(steps), stop=stop)
