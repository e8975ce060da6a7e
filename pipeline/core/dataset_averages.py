"""The names of the averages that stand beside data sets in metrics, so that no data set may have them.

"all" is the average over data sets, "single-hop" and "multi-hop" are those over the questions of one kind,
and "1-hop", "2-hop", … those over the questions with that number of hops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.core.records import HopType

ALL = "all"
HOP_AVERAGES: Mapping[HopType, str] = {"single": "single-hop", "multi": "multi-hop"}
_AVERAGES = frozenset({*HOP_AVERAGES.values(), ALL})
_HOP_COUNT = re.compile(r"(\d+)-hop")


def is_average(dataset: str) -> bool:
    """Whether this names an average over several data sets."""
    return dataset in _AVERAGES or hop_count(dataset) is not None


def hop_count(dataset: str) -> int | None:
    """The number of hops of an average such as "2-hop"; None for other names."""
    found = _HOP_COUNT.fullmatch(dataset)
    return None if found is None else int(found[1])


def hop_count_name(hops: int) -> str:
    """The name of the average over the questions with this number of hops."""
    return f"{hops}-hop"
