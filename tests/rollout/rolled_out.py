"""Rollouts with default settings, and a retriever that returns the same items for every query."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pipeline.config.policy import Prompt
from pipeline.core.records import ContextItem, Question, Trajectory
from pipeline.knowledge.retrieval.base import Query
from pipeline.rollout.policy import RolloutSettings
from pipeline.rollout.sampler import Rollout, roll_out
from pipeline.rollout.tags import TaggedText

_SETTINGS = {field.name for field in fields(RolloutSettings)}
_PARTS = {field.name for field in fields(Rollout)}
_DEFAULTS: dict[str, Any] = {"system": "S", "policy": "p", "samples": 1, "seed": 0}


class Returning:
    """A retriever that returns ``items`` for every query."""

    def __init__(self, *items: ContextItem) -> None:
        self.items = items

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        return [list(self.items) for _ in queries]


def passage(text: str, title: str = "T") -> ContextItem:
    return ContextItem("chunk", "c", title, text, 0.5)


def rolled_out(questions: Sequence[Question], **arguments: Any) -> list[Trajectory]:
    """Finished trajectories.

    ``arguments`` are those of `roll_out` and the fields of `Rollout`, with the fields of
    `RolloutSettings` in place of ``settings``, and ``system`` in place of its prompt. Engine and
    retriever are required, and ``format`` or ``grammar``, which means text with its tags.
    """
    arguments = {**_DEFAULTS, **arguments}
    if "grammar" in arguments:
        tokenizer = arguments["engine"].tokenizer
        arguments["format"] = TaggedText(tokenizer, arguments.pop("grammar"))
    arguments["prompt"] = Prompt(system=arguments.pop("system", ""))
    settings = {name: arguments.pop(name) for name in _SETTINGS & arguments.keys()}
    parts = {name: arguments.pop(name) for name in _PARTS & arguments.keys()}
    rollout = Rollout(settings=RolloutSettings(**settings), **parts)
    return list(roll_out(rollout, questions, **arguments))
