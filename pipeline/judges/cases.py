"""The interface of a judge: cases in, verdicts out (HiPRAG, arXiv 2510.07794, 3.2).

A case holds everything that a verdict depends on besides the judge, so equal steps of different
trajectories are one case. All backends implement `Judge`; a `JudgeCall` is the verdict of a judge
on one case, with the prompt and the reply.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pipeline.core.content_cache import digest
from pipeline.core.verdicts import Kind, Ruling


@dataclass(frozen=True, slots=True)
class EquivalenceCase:
    """Over-search: is the closed-book ``answer`` equivalent to the step's ``conclusion``?"""

    query: str
    answer: str
    conclusion: str
    kind: ClassVar[Kind] = "over"

    def ruling(self, holds: bool) -> Ruling:
        """Over-search ("yes") when the texts are equivalent: the search was not needed."""
        return "yes" if holds else "no"


@dataclass(frozen=True, slots=True)
class SoundnessCase:
    """Under-search: is a non-search step factually right, and does its conclusion follow?"""

    reasoning: str
    conclusion: str
    kind: ClassVar[Kind] = "under"

    def ruling(self, holds: bool) -> Ruling:
        """Under-search ("yes") when the step is not sound: it should have searched."""
        return "no" if holds else "yes"


Case = EquivalenceCase | SoundnessCase
_FLIPPED: dict[Ruling, Ruling] = {"yes": "no", "no": "yes", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """The verdict of a judge on one case.

    ``key`` is the content key of case and judge. ``prompt`` and ``reply`` are verbatim, and empty
    for a judge without a model. ``fault`` is the reason of an unknown verdict.
    """

    key: str
    verdict: Ruling
    model: str
    prompt: str = ""
    reply: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One row of ``calls.parquet``: a case with its verdict, prompt and reply."""

    key: str
    kind: Kind
    verdict: Ruling
    fault: str
    model: str
    query: str | None = None
    answer: str | None = None
    reasoning: str | None = None
    conclusion: str
    prompt: str
    reply: str


class Judge(ABC):
    """Decides cases. Close it after use, or use it in a ``with`` statement.

    ``model`` is its name. ``in_process`` means that deciding loads a model into this process, so no
    other model should be loaded at that time.
    """

    model: str
    in_process: bool = False

    @abstractmethod
    def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
        """One call per case, in order.

        The verdict is "unknown" where a single case cannot be decided. Raises EngineError when the
        judge is unavailable.
        """

    def close(self) -> None:  # noqa: B027 - most judges hold no resources
        """Free the loaded model and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NoisyJudge(Judge):
    """The judge ``inner`` with ``share`` of its verdicts flipped, for experiments with label noise.

    The case determines which verdicts are flipped, so equal cases get equal verdicts,
    in any order and in every rerun. An unknown verdict stays unknown.
    """

    def __init__(self, inner: Judge, share: float) -> None:
        self.inner = inner
        self.in_process = inner.in_process
        # The name is recorded in every verdict, so its wording is kept.
        self.model = f"{inner.model}, {share:g} of its verdicts turned (seed 0)"
        self._share = share

    def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
        """The calls of the inner judge, some of them with a flipped verdict."""
        return [self._with_noise(call) for call in self.inner.decide(cases)]

    def _with_noise(self, call: JudgeCall) -> JudgeCall:
        drawn = hashlib.sha256(f"0 {call.key}".encode()).digest()
        flips = int.from_bytes(drawn[:8], "big") < self._share * 2**64
        return replace(
            call,
            key=digest("noisy", str(self._share), "0", call.key).hex(),
            model=self.model,
            verdict=_FLIPPED[call.verdict] if flips else call.verdict,
        )

    def close(self) -> None:
        self.inner.close()
