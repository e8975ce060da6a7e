"""Names of policies in results: their order and their titles.

The policies of a run are policy 0 ("sft", or "base" or "start" without a cold start) and "round-1",
"round-2", …. Other policies of ``steep evaluate`` have other names, or "base".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_FIRST = ("sft", "start", "base")  # a run has one of them as policy 0
_ROUND = re.compile(r"round-(\d+)")
_TITLES = {"sft": "SFT", "base": "Base model", "start": "Start"}


def of_run(names: Collection[str]) -> list[str]:
    """Policy 0 and the policies of the rounds among ``names``, in order of training."""
    first = [name for name in _FIRST if name in names][:1]
    return first + sorted((name for name in names if _ROUND.fullmatch(name)), key=_number)


def in_order(names: Iterable[str]) -> list[str]:
    """All ``names``, each once: other policies in the order given, then the run's policies."""
    distinct = dict.fromkeys(names)
    own = of_run(distinct)
    return [name for name in distinct if name not in own] + own


def policy_title(name: str) -> str:
    """Display name of a policy: "SFT", "Round 2", "Base model"; others have their own name."""
    return f"Round {_number(name)}" if _ROUND.fullmatch(name) else _TITLES.get(name, name)


def _number(name: str) -> int:
    return int(name.removeprefix("round-"))
