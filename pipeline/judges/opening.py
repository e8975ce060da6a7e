"""Open the judges of a configuration, and the policy that gives the closed-book answers.

Models are loaded and requests are sent only for cases without a cached answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.evaluation import JudgeModel, Judges
from pipeline.core.progress import Progress
from pipeline.judges.cases import Judge, NoisyJudge
from pipeline.judges.closed_book import ClosedBookAnswer, closed_book_answers
from pipeline.judges.llm_judge import LlmJudge
from pipeline.llm.chat import Usage
from pipeline.llm.models import Models
from pipeline.llm.replies import ReplyExchange
from pipeline.rollout.grammars import Grammar

_TRIES = 3  # requests of a case until an endpoint gives an answer that can be parsed


@dataclass
class Judging:
    """Opens what the settings ``judges`` name.

    ``world`` is the directory of the closed world, if there is one. ``replies`` takes part in the
    requests to the models: "over", "under" and "policy". ``key`` is the setting of a judge that is
    not in the block ``judges``, for messages. ``usages`` counts the requests to each model: of the
    policy, and "judge" or "over" and "under".
    """

    settings: Judges
    models: Models
    replies: ReplyExchange
    progress: Progress
    world: Path | None = None
    key: str = ""
    usages: dict[str, Usage] = field(default_factory=lambda: {"policy": Usage()})

    def answers(
        self, adapter: Path | None, grammar: Grammar, queries: Sequence[str]
    ) -> Mapping[str, ClosedBookAnswer]:
        """The answer of the policy with ``adapter`` to each query.

        The model is loaded only when an answer is not cached, and freed before returning.
        """
        with self.models.policy_chat(adapter) as chat:
            chat.progress = self.progress
            self.replies.attach("policy", chat)
            answers = closed_book_answers(queries, chat, grammar)
        self.usages["policy"] = chat.usage
        return answers

    def judges(self) -> tuple[Judge, Judge]:
        """The judges of over-search and under-search: one for both if their settings are equal."""
        over = self._judge("over", self.settings.over)
        if self.settings.under == self.settings.over:
            if "over" in self.usages:
                self.usages["judge"] = self.usages.pop("over")
            return over, over
        return over, self._judge("under", self.settings.under)

    def _judge(self, kind: str, model: JudgeModel) -> Judge:
        if model.noisy is not None:
            without_noise = self._judge(kind, model.model_copy(update={"noisy": None}))
            return NoisyJudge(without_noise, model.noisy.share)
        if model.backend == "closed-world":
            from pipeline.closed_world.write import read_world
            from pipeline.judges.closed_world import ClosedWorldJudge

            assert self.world is not None  # checked by the configuration
            judge = ClosedWorldJudge(read_world(self.world))
            judge.progress = self.progress
            return judge
        chat = self.models.chat(self.key or f"judges.{kind}", model)
        chat.progress = self.progress
        self.replies.attach(kind, chat)
        self.usages[kind] = chat.usage
        if model.endpoint is not None:
            return LlmJudge(chat, model=model.endpoint.model, tries=_TRIES)
        # A second try is useless here: greedy decoding repeats its answer.
        return LlmJudge(chat, model=str(model.model), in_process=True)
