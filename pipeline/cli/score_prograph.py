"""ProGraph-R1's reward (eq. 11 to 15) for the records of a file, as part of ``steep score``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pipeline.cli.records import File, ItemView, Record, check_spans, parse_view, read_input
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.records import ContextItem, GrammarName, Span, Stop, Trajectory

if TYPE_CHECKING:
    from pipeline.rewards.prograph import ProGraphWeights


@dataclasses.dataclass
class FactView(ItemView):
    """A retrieved item; without ``entities`` its text is searched for names."""

    kind: Literal["chunk", "triplet", "hyperedge"] = "hyperedge"
    entities: list[str] | None = None

    def item(self) -> ContextItem:
        """The item as trajectories hold it."""
        return ContextItem(self.kind, self.id, self.title, self.text, self.score)


@dataclasses.dataclass
class TurnView:
    """The fields of a step that the rewards read; the step that answers has no query."""

    think: str = ""
    query: str | None = None
    context: list[FactView] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ProGraphView:
    """The fields that ProGraph-R1's reward reads.

    Texts are searched for the names in ``entities`` and for the entities of the items. ``values``
    holds a Monte Carlo value estimate for the state before each step and for the end; without it
    progress is null.
    """

    answers: list[str]
    question: str = ""
    output: str = ""
    grammar: GrammarName = DEFAULT_METHOD
    spans: list[Span] = dataclasses.field(default_factory=list)
    steps: list[TurnView] | None = None
    entities: list[str] = dataclasses.field(default_factory=list)
    values: list[float] | None = None
    answer: str | None = None
    format_ok: bool | None = None
    stop: Stop = "answer"

    def record(self) -> Trajectory:
        """A trajectory without ids or steps."""
        return Trajectory(
            trajectory_id="",
            question_id="",
            dataset="",
            question=self.question,
            hop="multi",
            answers=self.answers,
            evidence=[],
            grammar=self.grammar,
            output=self.output,
            stop=self.stop,
        )


def score_records(source: File, reward: str, config: str) -> Iterator[Record]:
    """The records of a file with ``rewards``, null where retrieval failed.

    ``reward`` is the default grammar of a record. ``config`` is "lexical", or a configuration whose
    weights replace the paper's. Raises InputError for a malformed record.
    """
    from pipeline.rewards.prograph import DEFAULT, ProGraphWeights

    weights = DEFAULT
    if config != "lexical":
        from pipeline.config import load

        settings = load(config).rewards.prograph
        weights = ProGraphWeights(settings.progress, settings.structure)
    for line, record in read_input(source):
        yield record | {"rewards": _rewards(record, source, line, reward, weights)}


def _rewards(
    record: Record, source: File, line: int, reward: str, weights: ProGraphWeights
) -> object:
    from pipeline.grammars import grammar
    from pipeline.rewards.prograph import step_rewards
    from pipeline.rewards.structure import RecordedEntities, structure
    from pipeline.rollout.turns import Turn, turns_of

    view = parse_view(ProGraphView, record, source, line, grammar=reward)
    if view.stop == "retrieval_error":
        return None
    check_spans(view.output, view.spans, "spans", source, line)
    parser = grammar(view.grammar)
    parsed = parser.parse(view.output, view.spans)
    entities_of_item = dict[int, list[str]]()
    if view.steps is None:
        trajectory = dataclasses.replace(view.record(), steps=parsed.steps)
        trajectory.spans = view.spans or parser.spans(view.output)
        turns = turns_of(trajectory)
    else:
        trajectory, turns = view.record(), []
        for step in view.steps:
            items = tuple(fact.item() for fact in step.context)
            for fact, item in zip(step.context, items, strict=True):
                if fact.entities is not None:
                    entities_of_item[id(item)] = fact.entities
            turns.append(Turn(f"{step.think}\n{step.query or ''}", items, (0, 0)))
    trajectory.answer = parsed.answer if "answer" not in record else view.answer
    trajectory.format_ok = parsed.format_ok if view.format_ok is None else view.format_ok
    if view.values is not None and len(view.values) != len(turns) + 1:
        problem = (
            f"values: {len(view.values)} for {len(turns)} steps; expected one before each step and "
            "one at the end"
        )
        raise InputError.at(source_name(source), line, problem)
    if view.values and not math.isfinite(max(view.values) - min(view.values)):
        problem = (
            "values: they differ by more than a number can hold; expected estimates near 0 to 1"
        )
        raise InputError.at(source_name(source), line, problem)
    terms = structure(trajectory, turns, RecordedEntities(view.entities, entities_of_item))
    return step_rewards(trajectory, terms, view.values, weights)
