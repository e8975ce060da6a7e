"""Names of policies in results: their order and their titles.

The policies of a run are policy 0 ("sft", or "base" or "start" without a cold start) and "round-1",
"round-2", … for policies 1, 2, …. These names are keys of ``metrics.json`` and of other files, and
every page and table shows their titles. Other policies of ``steep evaluate`` have the names of
their directories, or those of a policy of another run ("embedded:round-2").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_FIRST = ("sft", "start", "base")  # a run has one of them as policy 0
_ROUND = re.compile(r"round-(\d+)")
_TITLES = {"sft": "Policy 0 (SFT)", "base": "Base model", "start": "Policy 0 (given)"}
_KNOWN = re.compile(rf"(?:(?P<run>.+):)?(?P<own>{'|'.join(_FIRST)}|{_ROUND.pattern})")


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
    """Title of a policy: "Policy 0 (SFT)", "Policy 2", "Base model"; a directory has its own name.

    A policy of another run has the name of that run before it: "embedded: policy 2".
    """
    found = _KNOWN.fullmatch(name)
    if found is None:
        return name
    own = found["own"]
    title = _TITLES.get(own) or f"Policy {_number(own)}"
    return title if found["run"] is None else f"{found['run']}: {_lower(title)}"


def policy_in_text(name: str) -> str:
    """The title inside a sentence: "policy 0 (SFT)", "policy 2", "the base model"."""
    title = policy_title(name)
    if title == name or ":" in title:
        return title
    return "the base model" if name == "base" else _lower(title)


def round_title(number: int) -> str:
    """Title of the trajectories of a round: "Round 2, samples of policy 1"."""
    return f"Round {number}, samples of policy {number - 1}"


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _number(name: str) -> int:
    return int(name.removeprefix("round-"))
