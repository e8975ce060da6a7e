"""Open the judges of a configuration, and the policy that gives the closed-book answers.

Models are loaded and requests are sent only for cases without a cached answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.config import JudgeModel, Judges
from pipeline.grammars import grammar
from pipeline.judges.cases import Judge, NoisyJudge
from pipeline.judges.closed_book import ClosedBookAnswer, closed_book_answers
from pipeline.judges.llm_judge import LlmJudge
from pipeline.llm.chat import Usage
from pipeline.llm.replies import ReplyExchange
from pipeline.rollout.policy import read_policy
from pipeline.run.context import StageContext
from pipeline.stages.policy import open_policy_chat
from pipeline.stages.resources import open_chat

ANSWER_TOKENS = 128  # of the policy's answer to a closed-book question


_TRIES = 3  # requests of a case until an endpoint gives an answer that can be parsed


def open_judges(
    context: StageContext, settings: Judges, replies: ReplyExchange
) -> tuple[Judge, Judge]:
    """The judges of over-search and under-search: one judge for both when their settings are equal.

    ``replies`` takes part in the requests to their models, as "over" and "under".
    """
    over = _judge(context, settings, "over", settings.over, replies)
    if settings.under == settings.over:
        return over, over
    return over, _judge(context, settings, "under", settings.under, replies)


def _judge(
    context: StageContext, settings: Judges, kind: str, model: JudgeModel, replies: ReplyExchange
) -> Judge:
    judge = _noiseless_judge(context, kind, model, replies)
    return judge if model.noisy is None else NoisyJudge(judge, model.noisy.share)


def _noiseless_judge(
    context: StageContext, kind: str, model: JudgeModel, replies: ReplyExchange
) -> Judge:
    if model.backend == "closed-world":
        from pipeline.judges.closed_world import ClosedWorldJudge

        judge = ClosedWorldJudge.of(context.inputs["world"])
        judge.progress = context.progress
        return judge
    chat = open_chat(context.config, f"judges.{kind}", model, seed=context.seed)
    chat.progress = context.progress
    replies.attach(kind, chat)
    if model.endpoint is not None:
        return LlmJudge(chat, model=model.endpoint.model, tries=_TRIES)
    # A second try is useless here: greedy decoding repeats its answer.
    return LlmJudge(chat, model=str(model.model), in_process=True)


class PolicyAnswers:
    """Closed-book answers of the policy in ``inputs["policy"]``; ``usage`` counts its requests.

    ``replies`` takes part in the requests, as "policy".
    """

    def __init__(
        self, context: StageContext, settings: Judges, replies: ReplyExchange | None = None
    ) -> None:
        self._context = context
        self._settings = settings
        self._replies = replies or ReplyExchange()
        self.usage = Usage()

    def __call__(self, queries: Sequence[str]) -> Mapping[str, ClosedBookAnswer]:
        """The policy's answer to each query.

        The model is loaded only when an answer is not cached, and freed before returning.
        """
        config = self._context.config
        adapter = read_policy(self._context.inputs["policy"]).adapter
        with open_policy_chat(self._context, adapter) as chat:
            chat.progress = self._context.progress
            self._replies.attach("policy", chat)
            answers = closed_book_answers(
                queries,
                chat,
                grammar(config.grammar, max_steps=config.sampling.max_steps),
                max_tokens=ANSWER_TOKENS,
            )
        self.usage = replace(chat.usage)
        return answers
