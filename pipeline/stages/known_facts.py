"""Ask the base model which hops it can answer without retrieval (HiPRAG's cold start).

Input: hops and the configured base model. Output: `KnownFacts`. The judges ask a policy closed-book
questions with the same prompts (`pipeline.judges.closed_book`), so training and judging agree on
which questions need no search.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.grammars import grammar
from pipeline.judges.closed_book import closed_book_answers
from pipeline.llm.replies import ReplyExchange
from pipeline.run.context import StageContext
from pipeline.sft_data.known_facts import KnownFacts, select_known_facts
from pipeline.sft_data.steps import Hop
from pipeline.stages.policy import open_policy_chat
from pipeline.stages.resources import add_usage

_ANSWER_TOKENS = 32  # of an answer to a closed-book question


def find_known_facts(
    context: StageContext, hops: Sequence[Hop], replies: ReplyExchange
) -> KnownFacts:
    """The hops that the base model knows, by the setting ``sft_data.memory``.

    ``replies`` takes part in the requests. Raises the errors of the base model's engine.
    """
    settings = context.config.sft_data.memory
    assert settings is not None
    return select_known_facts(
        hops,
        ask_base_model(context, hops, replies),
        search_share=settings.searched,
        num_closed_book=settings.rehearsed,
        seed=context.seed,
    )


def ask_base_model(
    context: StageContext, hops: Sequence[Hop], replies: ReplyExchange
) -> dict[str, str]:
    """The base model's greedy closed-book answer to each hop's question, by question.

    ``replies`` takes part in the requests, as "policy". Raises the errors of the base model's
    engine.
    """
    context.progress.start(len({hop.question for hop in hops}), "closed-book answers")
    with open_policy_chat(context, None) as chat:
        chat.progress = context.progress
        replies.attach("policy", chat)
        answers = closed_book_answers(
            [hop.question for hop in hops],
            chat,
            grammar(context.config.grammar),
            max_tokens=_ANSWER_TOKENS,
        )
        print(chat.usage.line())
        if not replies.replays:
            add_usage(context.work, "policy", chat.usage)
    return {question: answer.text for question, answer in answers.items()}
