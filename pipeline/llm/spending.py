"""The ceilings on cost and tokens of an endpoint.

Input: the replies of one process and the settings ``cost_ceiling`` and ``token_ceiling``. Output:
whether a ceiling is reached. Answers from the cache cost nothing. Requests that are in flight when a
ceiling is reached still finish, so it is exceeded by fewer answers than ``concurrency``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.base import Endpoint
from pipeline.core.records import Message
from pipeline.llm.chat import Reply, Usage

_TEMPLATE_TOKENS = 16  # a chat template adds fewer to each message


class Spending:
    """Compares the paid tokens of ``usage`` with the ceilings of ``settings``."""

    def __init__(self, settings: Endpoint, usage: Usage) -> None:
        self._settings = settings
        self._usage = usage
        self._most_prompt_tokens = 0  # of replies without plausible numbers of tokens
        self._most_completion_tokens = 0

    def add(self, reply: Reply, messages: Sequence[Message], max_tokens: int) -> None:
        """Count the most tokens that a reply without plausible numbers can have had.

        A token has at least one byte. ``max_tokens`` is the limit that was sent.
        """
        if reply.kept and not reply.counted:
            self._most_prompt_tokens += sum(
                len(message.content.encode("utf-8", "surrogatepass")) + _TEMPLATE_TOKENS
                for message in messages
            )
            self._most_completion_tokens += max_tokens

    def reached(self) -> str:
        """What was spent and the ceiling that it reached, or "" below the ceilings."""
        settings, usage = self._settings, self._usage
        prompt = usage.paid_prompt_tokens + self._most_prompt_tokens
        completion = usage.paid_completion_tokens + self._most_completion_tokens
        most = "at most " if self._most_completion_tokens else ""
        cost = usage.cost(prompt, completion)
        if settings.cost_ceiling is not None and cost >= settings.cost_ceiling:
            return f"new answers cost {most}{cost:g}; cost_ceiling is {settings.cost_ceiling:g}"
        if settings.token_ceiling is not None and prompt + completion >= settings.token_ceiling:
            return (
                f"new answers took {most}{prompt + completion:,} tokens; token_ceiling is "
                f"{settings.token_ceiling:,}"
            )
        return ""
