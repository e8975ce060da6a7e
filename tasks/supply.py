"""Supervised examples: whether the questions of ``data.sft`` can give enough of them.

The stage ``sft-data`` refuses fewer than ``sft_data.min_share`` of ``sft_data.sizes``, after the
graph was built. The number of questions by hops follows from the decompositions alone. It is an
upper bound of the examples that the stage will find, so a run below the limit would stop there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.config import Config, QuestionFile
from pipeline.core.errors import InputError
from pipeline.corpus.questions.select import even_shares
from pipeline.corpus.raw_files import read_rows

_DECOMPOSITION = "question_decomposition"


def supply_faults(settings: Config) -> Iterator[str]:
    """A sentence when the questions of ``data.sft`` cannot give the required examples."""
    if settings.data.closed_world is not None:
        return
    block = settings.sft_data
    wanted = {hops: size + block.test_sizes.get(hops, 0) for hops, size in block.sizes.items()}
    available: Counter[int] = Counter()
    for file in settings.data.sft:
        path = Path(settings.data.root or ".") / file.path
        try:
            counts = questions_by_hops(path, file, wanted)
        except (InputError, OSError):
            return  # the checks of data files report it
        if counts is None:
            return  # a format without decompositions in its records
        available += counts
    if not settings.data.sft:
        return
    single = sum(hops * number for hops, number in available.items())
    most = sum(
        min(size, single if hops == 1 else available[hops]) for hops, size in block.sizes.items()
    )
    total = sum(block.sizes.values())
    if most < max(1, block.min_share * total):
        counted = ", ".join(f"{hops}-hop: {number:,}" for hops, number in sorted(available.items()))
        yield (
            f"sft_data.sizes asks for {total:,} examples, and the questions of data.sft "
            f"({counted or 'none'}) give at most {most:,}, less than sft_data.min_share "
            f"({block.min_share:g}) of them; add questions to data.sft, or lower sft_data.sizes"
        )


def questions_by_hops(
    path: Path, file: QuestionFile, wanted: Mapping[int, int]
) -> Counter[int] | None:
    """Questions of a file by number of hops, up to ``wanted``; None without decompositions.

    Reading stops when every number of hops has enough. ``limit`` is divided over the hops as
    ``select`` does.
    """
    counts: Counter[int] = Counter()
    for row in read_rows(path):
        hops = row.value.get(_DECOMPOSITION)
        if not isinstance(hops, list):
            return None
        if all(row.value.get(name, value) == value for name, value in file.filter.items()):
            counts[len(hops)] += 1
        longer = [number for number in wanted if number > 1]
        if file.limit is None and all(counts[number] >= wanted[number] for number in longer):
            break
        if file.limit is not None and file.select == "first" and counts.total() >= file.limit:
            break
    if file.limit is None or counts.total() <= file.limit:
        return counts
    if file.select == "even-hops":
        order = sorted(counts)
        shares = even_shares([counts[number] for number in order], file.limit)
        return Counter(dict(zip(order, shares, strict=True)))
    return Counter({number: min(count, file.limit) for number, count in counts.items()})
