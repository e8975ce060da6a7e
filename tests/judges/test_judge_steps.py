"""Judging steps: each distinct case once, missing answers unknown, concurrency and label noise."""

import threading
from collections.abc import Mapping, Sequence

import pytest

from pipeline.core.verdicts import JudgedStep
from pipeline.judges.cases import Case, EquivalenceCase, JudgeCall, NoisyJudge, SoundnessCase
from pipeline.judges.closed_book import ClosedBookAnswer
from pipeline.judges.judge_steps import judge_steps
from tests.judges.known_judges import KnownJudge, KnownPolicy
from tests.waiting import LIMIT

STEPS = [
    JudgedStep("a", 0, "Who?", "r", "Ann"),
    JudgedStep("a", 1, None, "I know.", "fine"),
    JudgedStep("b", 0, "Who?", "another reason", "Ann"),  # over-search ignores the reasoning
    JudgedStep("b", 1, "Who?", "r", "Bo"),
    JudgedStep("b", 2, None, "I know.", "wrong"),
    JudgedStep("c", 0, None, "I know.", "fine"),
    JudgedStep("c", 1, "too long", "", "Ann"),
]


@pytest.mark.parametrize("in_process", [False, True])
def test_every_step_gets_a_verdict_and_every_case_is_decided_once(in_process: bool):
    over, under, policy = KnownJudge(), KnownJudge(in_process), KnownPolicy()
    judged = judge_steps(STEPS, policy, over, under)
    assert [(v.id, v.step, v.kind, v.verdict) for v in judged.verdicts(STEPS)] == [
        ("a", 0, "over", "yes"),
        ("a", 1, "under", "no"),
        ("b", 0, "over", "yes"),
        ("b", 1, "over", "no"),
        ("b", 2, "under", "yes"),
        ("c", 0, "under", "no"),
        ("c", 1, "over", "unknown"),
    ]
    assert policy.queries == [["Who?", "too long"]]
    assert over.cases == [
        EquivalenceCase("Who?", "Ann", "Ann"),
        EquivalenceCase("Who?", "Ann", "Bo"),
    ]
    assert under.cases == [SoundnessCase("I know.", "fine"), SoundnessCase("I know.", "wrong")]
    keys = [verdict.key for verdict in judged.verdicts(STEPS)]
    assert keys[0] == keys[2] != keys[3]
    assert set(keys) == {call.key for call in judged.calls.values()}


def test_a_remote_judge_decides_while_the_policy_answers():
    """Each waits until the other has started, so running them in sequence would block."""
    answering, deciding = threading.Event(), threading.Event()

    class Waiting(KnownJudge):
        def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
            deciding.set()
            assert answering.wait(LIMIT)
            return super().decide(cases)

    def answerer(queries: Sequence[str]) -> Mapping[str, ClosedBookAnswer]:
        answering.set()
        assert deciding.wait(LIMIT)
        return KnownPolicy()(queries)

    assert len(judge_steps(STEPS, answerer, KnownJudge(), Waiting()).calls) == 5


def test_models_of_this_process_are_loaded_one_after_the_other():
    order = []

    class Loaded(KnownJudge):
        def __init__(self, name: str) -> None:
            super().__init__(in_process=True)
            self.name = name

        def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
            order.append(self.name)
            return super().decide(cases)

        def close(self) -> None:
            order.append(f"{self.name} closed")

    def answerer(queries: Sequence[str]) -> Mapping[str, ClosedBookAnswer]:
        order.append("policy")
        return KnownPolicy()(queries)

    judge_steps(STEPS, answerer, Loaded("over"), Loaded("under"))
    assert order == ["policy", "over", "over closed", "under"]


CASES = [SoundnessCase("r", f"{number}") for number in range(2000)]


def flipped(share: float, cases: Sequence[Case] = CASES) -> list[bool]:
    plain = KnownJudge().decide(cases)
    noisy = NoisyJudge(KnownJudge(), share).decide(cases)
    pairs = zip(plain, noisy, strict=True)
    return [plain_call.verdict != noisy_call.verdict for plain_call, noisy_call in pairs]


def test_label_noise_flips_its_share_independently_of_the_order():
    assert sum(flipped(0.2)) == pytest.approx(400, abs=60)
    assert flipped(0.2, CASES[::-1]) == flipped(0.2)[::-1]
    assert not any(flipped(0.0))
    assert all(flipped(1.0))


def test_label_noise_changes_name_and_key_and_keeps_unknown_verdicts():
    case = SoundnessCase("r", "what?")
    plain, noisy = (KnownJudge().decide([case])[0], NoisyJudge(KnownJudge(), 1.0).decide([case])[0])
    assert noisy.verdict == "unknown"
    assert noisy.fault == plain.fault
    assert noisy.key != plain.key
    assert noisy.model == "known, 1 of its verdicts turned (seed 0)"
