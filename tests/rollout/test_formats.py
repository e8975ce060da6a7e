"""A format of trajectories is a module and an entry in the registry."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from pipeline.core.formats import FORMATS
from pipeline.engine.context import policy_format
from pipeline.llm.tokenizer import Tokenizer
from pipeline.rollout.formats import OpenFormat
from pipeline.rollout.grammars.base import ParsedOutput
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.tags import TaggedText, Tags
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.rolled_out import rolled_out
from tests.rollout.test_sampler import TOKENIZER, Documents, question, two_steps
from tests.smallest import small_config


class Shouted(Tags):
    """Text with tags, whose answer is read in capitals."""

    name: ClassVar[str] = "shouted"

    def open(self, tokenizer: Tokenizer, max_steps: int) -> OpenFormat:
        return ShoutedText(tokenizer, self.limited(tokenizer, max_steps))


class ShoutedText(TaggedText):
    name: ClassVar[str] = "shouted"

    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        parsed = super().parse(trajectory, most)
        return replace(parsed, answer=(parsed.answer or "").upper())


def test_a_registered_format_is_rolled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "shouted", f"{__name__}:Shouted")  # type: ignore[arg-type]
    config = small_config().model_copy(update={"format": "shouted"})
    [trajectory] = rolled_out(
        [question()],
        engine=ScriptedEngine(two_steps, TOKENIZER),
        format=policy_format(config).open(TOKENIZER, 5),
        retriever=Documents(),
    )
    assert (trajectory.format, trajectory.answer) == ("shouted", "ROME")
    assert len(trajectory.steps) == 2
