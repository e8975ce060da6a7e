"""The exact judge of the closed world: verdicts by the facts of the world instead of a model.

Over-search: two texts are equivalent when they give the same value for the query, such as the same
entity under any of its names or the same date in any format. Under-search: the first rule that
applies decides on a step.

1. A false statement in the step, or a false claim in its conclusion, makes the step unsound.
2. A conclusion that states facts is sound. If the reasoning states facts too, the conclusion must
   name only entities and values that the reasoning names.
3. If only the reasoning states facts, the last name in the conclusion must occur in these facts.
   Without any name in the conclusion, the verdict is unknown.
4. If the reasoning asks a question about the world, the conclusion must give its answer.
5. Otherwise the step is unsound, with one exception. The verdict is unknown if the conclusion names
   something, and the reasoning or the conclusion may be a statement that the reader does not parse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from pipeline.closed_world.reading import Reader
from pipeline.closed_world.world import World
from pipeline.core.answer_metrics import normalize
from pipeline.core.content_cache import digest
from pipeline.core.progress import Progress, counted
from pipeline.judges.cases import Case, EquivalenceCase, Judge, JudgeCall, SoundnessCase


class ClosedWorldJudge(Judge):
    """Decides by the facts of ``world``. Deciding never raises, for any text.

    ``progress`` counts the cases.
    """

    model = "closed-world"

    def __init__(self, world: World) -> None:
        self.progress = Progress()
        self._reader = Reader(world)
        self._world = f"{world.seed} {len(world.documents)}"

    def decide(self, cases: Sequence[Case]) -> list[JudgeCall]:
        """One call per case, with empty prompt and reply."""
        return [self._call(case) for case in counted(cases, self.progress)]

    def _call(self, case: Case) -> JudgeCall:
        key = digest(self.model, self._world, case.kind, *astuple(case)).hex()
        if isinstance(case, EquivalenceCase):
            return JudgeCall(key, case.ruling(self._equivalent(case)), self.model)
        holds = self._sound(case)
        if holds is None:
            return JudgeCall(key, "unknown", self.model, fault="conclusion states nothing readable")
        return JudgeCall(key, case.ruling(holds), self.model)

    def _equivalent(self, case: EquivalenceCase) -> bool:
        answer_values = self._reader.value(case.query, case.answer)
        conclusion_values = self._reader.value(case.query, case.conclusion)
        if answer_values or conclusion_values:
            return bool(answer_values & conclusion_values)
        answer = normalize(case.answer)
        return bool(answer) and answer == normalize(case.conclusion)

    def _sound(self, case: SoundnessCase) -> bool | None:
        """Whether the step is sound by the rules above; None is unknown."""
        reader = self._reader
        reasons, concluded = reader.statements(case.reasoning), reader.statements(case.conclusion)
        if not all(true for _, true in (*reasons, *concluded)):
            return False
        if reader.claims_falsely(case.conclusion):
            return False
        premises = {
            value
            for text, _ in reasons
            for mention in reader.mentions(text)
            for value in mention.values
        }
        if concluded:
            mentions = [mention for text, _ in concluded for mention in reader.mentions(text)]
            return not reasons or all(mention.values & premises for mention in mentions)
        last = reader.mentions(case.conclusion)[-1:]
        if reasons:
            return bool(last[0].values & premises) if last else None
        question_and_answer = reader.question(case.reasoning)
        if question_and_answer is None:
            may_state = reader.may_state(case.conclusion) or reader.may_state(case.reasoning)
            return None if last and may_state else False
        question, answer = question_and_answer
        return bool(reader.value(question, case.conclusion) & reader.value(question, answer))
